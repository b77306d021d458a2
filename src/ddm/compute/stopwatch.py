"""Measure how long a call takes, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

MIN_SECONDS = 0.3
"""Minimum seconds of a trial: shorter trials vary too much."""


def time_once(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def time_mean(work: Callable[[], object]) -> float:
    """Mean seconds of a call, after one warm-up call. The call is repeated for at least MIN_SECONDS."""
    passed, calls = 0.0, 0
    work()
    while passed < MIN_SECONDS:
        passed, calls = passed + time_once(work), calls + 1
    return passed / calls
