"""The exception for bad input, and a test for running out of memory."""

from __future__ import annotations

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one sentence that says what to do.

    The command line prints it on standard error and exits with code 2.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed. Only the message of torch's errors says so, not their type."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)
