"""Inputs by the thousand, each of which is read or refused in one line, in bounded time and memory."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import peak_memory

from ddm.errors import InputError

SECONDS = 30
"""In which an input must be done: a reader that hangs is stopped."""
GROWTH = 100 * 2**20
"""Bytes that an input may take."""
BLOCK = 100
"""Inputs after which it is asked how much memory the largest of them took."""


def some(most: int, least: int) -> int:
    """The number of faults to try: the fraction of ``most`` that the variable FAULTS sets, but at least ``least``."""
    return max(least, round(most * float(os.environ.get("FAULTS", "0.01"))))


class Hang(BaseException):
    """An input takes too long. Not an ``Exception``: readers take those for what is wrong with a file."""


def give_all(name: str, give: Callable[[int], None], inputs: int, attempt: Any, growth: int = GROWTH) -> None:
    """Give inputs by their numbers: each is read or refused, in bounded time and memory."""
    for first in range(0, inputs, BLOCK):
        block = range(first, min(first + BLOCK, inputs))
        errors, before = [], peak_memory.reset()
        for number in block:
            signal.alarm(SECONDS)
            try:
                _read_or_refused(give, number)
            except (Exception, Hang) as error:
                errors.append((number, error))
        signal.alarm(0)
        for number, error in errors:
            with attempt("inputs"):
                raise AssertionError(f"{name}, input {number}: {type(error).__name__}: {error}") from error
        with attempt("inputs", len(block) - len(errors)):
            taken = peak_memory.peak() - before
            assert taken < growth, f"{name}, inputs {first} to {block[-1]}: one took {taken / 2**20:.0f} MiB of memory"


def _read_or_refused(give: Callable[[int], None], number: int) -> None:
    try:
        give(number)
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error
        if any(map(_no_memory, _behind(error))):
            raise AssertionError("it asked for more memory than there is") from error


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Every error that led to this one, shown to the user or not."""
    while error.__context__ is not None:
        error = error.__context__
        yield error


def _no_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)  # torch's is a RuntimeError
