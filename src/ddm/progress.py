"""Progress bars with the time left, on standard error, for everything that may take more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[float], None]
"""Moves a bar on by some amount of work."""

_PATIENCE = 2.0
"""Seconds of work before a bar appears: shorter work shows nothing."""

_shown: bool | None = None


def show(shown: bool | None) -> None:
    """Turn bars on or off; ``None`` shows them only where standard error is a terminal."""
    global _shown
    _shown = shown


@contextmanager
def bar(description: str, total: float) -> Iterator[Advance]:
    """A bar for ``total`` units of work, of any size; the function it yields moves it on."""
    if not (sys.stderr.isatty() if _shown is None else _shown):
        yield lambda amount: None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = progress.add_task(description, total=total)
    started = time.monotonic()

    def advance(amount: float) -> None:
        progress.advance(task, amount)
        if not progress.live.is_started and time.monotonic() - started > _PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()
