"""A task that fails on one of its items, for tests of retries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def failing_task(bad: Any, attempts: Path) -> Callable[[Any], Any]:
    """A function that returns its item, but raises on ``bad`` and appends an x to the file ``attempts`` each time."""

    def task(item: Any) -> Any:
        if item == bad:
            with attempts.open("a") as file:
                file.write("x")
            raise RuntimeError("cannot be done")
        return item

    return task
