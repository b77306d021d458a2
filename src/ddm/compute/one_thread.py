"""Computing on one thread, in any number of Python threads at once.

Torch keeps one thread count for each Python thread. A new Python thread starts with the count that was set last, in
whatever thread that was. So a thread that starts while another computes on one thread finds the count 1, which is not
the count to return to.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch


class _Counts:
    """Thread counts to return to.

    inside:  number of Python threads that compute on one thread now
    outside: the count of the first of them before it did
    here:    has the attribute ``inside`` in Python threads that compute on one thread now
    """

    def __init__(self) -> None:
        self.lock, self.here = threading.Lock(), threading.local()
        self.inside, self.outside = 0, 1

    def forget_others(self) -> None:
        """Count this thread only: a forked process has none of the others, and the lock may be theirs."""
        self.lock, self.inside = threading.Lock(), int(self.is_inside)

    @property
    def is_inside(self) -> bool:
        """True if this Python thread computes on one thread now."""
        return hasattr(self.here, "inside")

    def enter(self) -> int:
        """Set this thread's count to 1, and return the count to return to."""
        with self.lock:
            count = torch.get_num_threads()
            if not self.inside:
                self.outside = count
            elif count == 1:
                count = self.outside
            self.inside += 1
            torch.set_num_threads(1)
        self.here.inside = True
        return count

    def leave(self, count: int) -> None:
        """Return to this thread's count, which is also that of new threads."""
        del self.here.inside
        with self.lock:
            self.inside -= 1
            torch.set_num_threads(count)


_counts = _Counts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_counts.forget_others)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, as every task does. More threads would add floats in another order and change results."""
    if _counts.is_inside:
        yield
        return
    count = _counts.enter()
    try:
        yield
    finally:
        _counts.leave(count)
