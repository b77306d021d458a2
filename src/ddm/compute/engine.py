"""Independent pieces of work, wherever they run: in this process, in local processes, or on a Dask or Ray cluster.

The results are the same on each, bit for bit: a piece has one thread, and none depends on another. What all pieces
share is sent to a worker once. A worker that dies is replaced; a piece that fails is tried again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ddm.compute import progress
from ddm.compute.backends import Place
from ddm.compute.validation import check_most
from ddm.errors import InputError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

Engine = str | Place | None
"""Where: serial, processes (also None), dask://HOST:PORT, ray or ray://HOST:PORT."""

TRIES = 3
"""How often a piece may fail."""


def each(
    work: Callable[[Piece], Result],
    pieces: Sequence[Piece],
    *,
    engine: Engine = None,
    workers: int | None = None,
    what: str | None = "working",
) -> Iterator[Result]:
    """Results of ``work`` for each piece, as they are finished, in any order.

    A piece that fails three times is named in an ``InputError`` when the others are done. An ``InputError`` of a piece
    itself is raised at once.

    workers: local processes (default: as many as cores that may be used); 1 stays in this process
    what:    of the bar; None shows none
    """
    place = Place.of(engine)
    check_most(workers=workers)
    count = 1 if place.kind == "serial" else min(workers or cores(), len(pieces))
    here = not pieces or (count <= 1 and not place.remote)
    run: _Run[Result] = _Here(work, pieces) if here else _Elsewhere(work, pieces, place, count)
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress.bar(what, len(pieces))) if what is not None else None
        for result in _persistently(run, pieces, what or "working"):
            if advance is not None:
                advance(1)
            yield result


def cores() -> int:
    """Cores of this machine that this process may use."""
    from joblib import cpu_count

    count: int = cpu_count()
    return count


def alone(work: Callable[[Piece], Result], piece: Piece) -> Result:
    """One piece, on one thread and without a bar of its own."""
    global _depth
    _depth += 1
    try:
        with progress.silent(), one_thread():
            return work(piece)
    finally:
        _depth -= 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Work on one thread, as every piece does: with more, sums are added in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_depth = 0


def inside() -> bool:
    """Whether this is work on a piece."""
    return _depth > 0


@dataclass(frozen=True)
class _Done(Generic[Result]):
    number: int
    result: Result


@dataclass(frozen=True)
class _Failed:
    number: int
    error: str
    trace: str
    refused: bool = False


_Outcome = _Done[Result] | _Failed
_Run = Callable[[Iterable[int]], Iterator[_Outcome[Result]]]
"""Does the pieces with some numbers, as far as it gets."""


class _Tries:
    """How often pieces have failed, and which are left."""

    def __init__(self, count: int) -> None:
        self.failures: Counter[int] = Counter()
        self.last: dict[int, _Failed] = {}
        self._left = list(range(count))
        self._idle = 0

    def batches(self) -> Iterator[list[int]]:
        """Pieces to do together, until none is left; the last try of each is by itself: what breaks is then its own."""
        while self._left:
            last = [number for number in self._left if self.failures[number] == TRIES - 1]
            together = [number for number in self._left if self.failures[number] < TRIES - 1]
            self._left = last if together else last[1:]
            yield together or last[:1]

    def failed(self, failure: _Failed) -> None:
        """Try a piece again, unless it failed too often."""
        self.failures[failure.number] += 1
        self.last[failure.number] = failure
        if self.failures[failure.number] < TRIES:
            self._left.append(failure.number)

    def broke(self, started: set[int], left: Sequence[int], error: Exception) -> None:
        """The pieces that were under way may have broken the workers; the others go on together."""
        for number in sorted(started):
            self.failed(_Failed(number, _said(error), traceback.format_exc()))
        self._idle = 0 if started else self._idle + 1
        if self._idle == TRIES:
            raise InputError(
                f"no work can be started on this engine ({_said(error)}): mend it, or choose another."
            ) from error
        self._left.extend(left)

    def given_up(self) -> list[_Failed]:
        """The last failure of each piece that failed too often."""
        return [self.last[number] for number, times in sorted(self.failures.items()) if times >= TRIES]


def _persistently(run: _Run[Result], pieces: Sequence[Any], what: str) -> Iterator[Result]:
    """Results of all pieces that succeed within their tries; then what is to be said of the others."""
    tries = _Tries(len(pieces))
    for batch in tries.batches():
        left, under_way = list(batch), set[int]()
        try:
            with contextlib.closing(run(_started(left, under_way))) as outcomes:  # type: ignore[type-var]
                for outcome in outcomes:
                    under_way.discard(outcome.number)
                    if isinstance(outcome, _Done):
                        yield outcome.result
                    elif outcome.refused:
                        raise InputError(outcome.error)
                    else:
                        tries.failed(outcome)
        except InputError:
            raise
        except Exception as error:
            tries.broke(under_way, left, error)
    _report(tries.given_up(), pieces, what)


def _started(left: list[int], under_way: set[int]) -> Iterator[int]:
    """Takes numbers from those that are left, noting that they are under way."""
    while left:
        under_way.add(left[0])
        yield left.pop(0)


def _report(failures: Sequence[_Failed], pieces: Sequence[Any], what: str) -> None:
    if failures:
        first = failures[0]
        which = " ".join(str(pieces[first.number]).split())
        which = which if len(which) <= 60 else which[:57] + "…"
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise InputError(
            f"{what}: piece {first.number + 1} of {len(pieces)} ({which}){more} failed {TRIES} times, at last with "
            f"'{first.error}'; the other {len(pieces) - len(failures)} are done."
        ) from RuntimeError(first.trace)


def _said(error: Exception) -> str:
    """What an error says, in one line."""
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ").rstrip(".")


def _attempt(work: Callable[[Piece], Result], piece: Piece, number: int) -> _Outcome[Result]:
    """What becomes of a piece: an error is told, not raised, since one that is raised ends its neighbours."""
    try:
        with _next_gpu(number):
            return _Done(number, alone(work, piece))
    except InputError as error:
        return _Failed(number, str(error), "", refused=True)
    except Exception as error:
        return _Failed(number, _said(error), traceback.format_exc())


def _next_gpu(number: int) -> contextlib.AbstractContextManager[Any]:
    """Where there are several GPUs pieces take them in turn: ``cuda`` without a number is then another for each."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.cuda.device(number % count) if count > 1 else contextlib.nullcontext()


class _Here(Generic[Piece, Result]):
    """Pieces one after another in this process."""

    def __init__(self, work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> None:
        self.work, self.pieces = work, pieces

    def __call__(self, numbers: Iterable[int]) -> Iterator[_Outcome[Result]]:
        for number in numbers:
            yield _attempt(self.work, self.pieces[number], number)


class _Elsewhere(Generic[Piece, Result]):
    """Pieces in other processes, here or on a cluster. The work is packed once, as an array that joblib shares."""

    def __init__(self, work: Callable[[Piece], Result], pieces: Sequence[Piece], place: Place, count: int) -> None:
        import cloudpickle

        self.pieces, self.place, self.count = pieces, place, count
        self.home = None if place.remote else os.getpid()
        self.key = uuid.uuid4().hex
        try:
            self.packed = np.frombuffer(cloudpickle.dumps(work), np.uint8)
        except Exception as error:
            raise InputError(
                f"this work cannot be sent to other processes ({_said(error)}): do it in this one, with workers=1."
            ) from error

    def __call__(self, numbers: Iterable[int]) -> Iterator[_Outcome[Result]]:
        from joblib import delayed

        call = delayed(_unpacked)
        calls = (call(self.key, self.packed, self.pieces[number], number, self.home) for number in numbers)
        return self.place.run(calls, self.packed, self.count)


_lock = threading.RLock()
"""Networks are not made for two threads: a worker does one piece at a time."""

_open: tuple[str, Any] = ("", None)
"""The work that was unpacked last in this process, and its key."""


def _unpacked(key: str, packed: np.ndarray, piece: Any, number: int, home: int | None) -> _Outcome[Any]:
    """A piece, by work that is unpacked once for all pieces of a process; ``home`` started it, if on this machine."""
    global _open
    with _lock:
        if home not in (None, os.getpid()):
            _belong_to(home)
        if _open[0] != key:
            import cloudpickle

            _open = key, cloudpickle.loads(packed.data)
        return _attempt(_open[1], piece, number)


@functools.cache
def _belong_to(home: int) -> None:
    """Leave Ctrl-C to the process that started this one, and end when it ends: killed, it cannot end this one."""

    def watch() -> None:
        while os.getppid() == home:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
