"""Progress bars with the time left, on standard error, for everything that may take more than two seconds."""

from __future__ import annotations

import sys
import threading
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


_silent = 0
"""How many blocks ask for no bars."""


@contextmanager
def silent() -> Iterator[None]:
    """No bars within this block: one further out shows the progress."""
    global _silent
    _silent += 1
    try:
        yield
    finally:
        _silent -= 1


def note(sentence: str) -> None:
    """Say something on standard error, before work that takes long."""
    if not _silent:
        print(sentence, file=sys.stderr)


@contextmanager
def bar(description: str, total: float) -> Iterator[Advance]:
    """A bar for ``total`` units of work, of any size, on a terminal; the function it yields moves it on."""
    if _silent or not sys.stderr.isatty():
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
    patience = threading.Timer(_PATIENCE, progress.start)
    patience.daemon = True
    patience.start()
    try:
        yield lambda amount: progress.advance(task, amount)
    finally:
        patience.cancel()
        patience.join()
        if progress.live.is_started:
            progress.stop()
