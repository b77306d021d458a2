"""The processor's time, which other work on the machine hardly changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What some work gives, and the processor's seconds that it took in this process."""
    started = time.process_time()
    found = work()
    return found, time.process_time() - started
