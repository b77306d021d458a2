"""The one exception users are meant to see, and the one that no program can be asked to avoid."""

from __future__ import annotations

_REFUSED = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one sentence that says what to do.

    The command line prints it on standard error and exits with code 2.
    """


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was asked for in vain; torch says so in words alone."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _REFUSED)
