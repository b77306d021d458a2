"""A value that several threads need and that one of them computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A value that is computed when it is first needed. Threads that need it meanwhile wait for it.

    It can be pickled, and a child that is forked while another thread computes computes it again.
    """

    def __init__(self, value: T | None = None) -> None:
        self._value = value
        self._renew_lock()

    def get(self, compute: Callable[[], T]) -> T:
        """The value; the first call computes it."""
        if self._value is None:
            if self._process != os.getpid():  # the lock of the parent may be locked for good
                self._renew_lock()
            with self._lock:
                if self._value is None:
                    self._value = compute()
        return self._value

    def _renew_lock(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_value": self._value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_value"])  # type: ignore[misc]
