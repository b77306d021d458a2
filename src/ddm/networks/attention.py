"""Restrict attention to the one kernel that can be differentiated twice. Safe to use from several threads."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel


class _MathAttention:
    """A context in which attention uses torch's math kernel, the only one with second derivatives on the CPU.

    ``sdpa_kernel`` sets flags of the whole process. So the first thread that enters sets them, and the last thread that
    leaves restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._flags: AbstractContextManager[Any] | None = None
        if hasattr(os, "register_at_fork"):
            # A fork waits until no thread is changing the flags. The child has none of the threads that are inside.
            os.register_at_fork(
                before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._after_fork
            )

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._flags = sdpa_kernel(SDPBackend.MATH)
                self._flags.__enter__()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._restore()

    def _after_fork(self) -> None:
        self._inside = 0
        self._restore()
        self._lock.release()

    def _restore(self) -> None:
        if self._flags is not None:
            self._flags.__exit__(None, None, None)
            self._flags = None


math_attention = _MathAttention()
"""The context that all threads of this process share, because they share the flags."""
