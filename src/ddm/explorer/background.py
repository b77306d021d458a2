"""Background: work in a thread of its own, that is waited for piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A function in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float) -> bool:
        """Whether it is done after so long at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What it returned; what it raised is raised again."""
        if self._error is not None:
            raise self._error
        return self._found[0]
