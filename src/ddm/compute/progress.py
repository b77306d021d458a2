"""Progress on standard error: a bar on a terminal, and a plain line every 30 seconds in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ddm.compute.terminal import console, printable

Advance = Callable[[float], None]
"""Advances a bar by an amount of work."""

_DELAY = 2.0
"""Seconds of work before a bar appears: shorter work shows nothing."""

_INTERVAL = 30.0
"""Seconds between two lines in a log: shorter work prints nothing."""


_silent = 0
"""Number of ``silent`` blocks that are running, in all threads."""

_counting = threading.Lock()


@contextmanager
def silent() -> Iterator[None]:
    """Show no progress within this block, because an outer bar does."""
    _count_silent(1)
    try:
        yield
    finally:
        _count_silent(-1)


def _count_silent(change: int) -> None:
    global _silent
    with _counting:
        _silent += change


def note(sentence: str) -> None:
    """Print a sentence on standard error, before work that takes long."""
    if not _silent:
        print(printable(sentence), file=sys.stderr)


@contextmanager
def bar(description: str, total: float) -> Iterator[Advance]:
    """Show the progress of ``total`` units of work; the block gets a function that it calls with each amount done."""
    if _silent:
        yield lambda amount: None
        return
    with _terminal(description, total) if sys.stderr.isatty() else _log(description, total) as advance:
        yield advance


@contextmanager
def _terminal(description: str, total: float) -> Iterator[Advance]:
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console(stderr=True),
    )
    task = progress.add_task(printable(description), total=total)
    delay = threading.Timer(_DELAY, progress.start)
    delay.daemon = True
    delay.start()
    try:
        yield lambda amount: progress.advance(task, amount)
    finally:
        delay.cancel()
        delay.join()
        if progress.live.is_started:
            progress.stop()


@contextmanager
def _log(description: str, total: float) -> Iterator[Advance]:
    start, done, ended = time.monotonic(), 0.0, threading.Event()

    def advance(amount: float) -> None:
        nonlocal done
        done += amount

    def print_lines() -> None:
        while not ended.wait(_INTERVAL):
            print(
                format_line(printable(description), done, total, time.monotonic() - start), file=sys.stderr, flush=True
            )

    printing = threading.Thread(target=print_lines, daemon=True)
    printing.start()
    try:
        yield advance
    finally:
        ended.set()
        printing.join()


def format_line(description: str, done: float, total: float, elapsed: float) -> str:
    """A line for a log, such as ``distilling groups: 40 of 100, 1 min elapsed, 2 min left``.

    A ``total`` that is not a whole number is an estimate: the line then shows percent, at most 100.
    """
    done = min(done, total)
    count = f"{done:,.0f} of {total:,}" if isinstance(total, int) else f"{done / total if total else 0:.0%}"
    left = f"{format_duration(elapsed * (total - done) / done)} left" if done > 0 else "time left not known yet"
    return f"{description}: {count}, {format_duration(elapsed)} elapsed, {left}"


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
