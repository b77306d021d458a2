"""Where independent pieces of work run: in this process, or in local processes with one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from ddm import progress

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def each(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], *, workers: int | None = None, what: str = "working"
) -> Iterator[Result]:
    """Results of ``work`` for each piece, as they are finished, in any order.

    workers: processes (default: as many as cores); 1 stays in this process. Each has one thread, so that a result
             does not depend on how many there are.
    """
    count = min(workers or os.cpu_count() or 1, len(pieces))
    with progress.bar(what, len(pieces)) as advance:
        for result in _local(work, pieces) if count <= 1 else _processes(work, pieces, count):
            advance(1)
            yield result


def _local(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Iterator[Result]:
    for piece in pieces:
        threads = torch.get_num_threads()
        try:
            result = alone(work, piece)
        finally:
            torch.set_num_threads(threads)
        yield result


def _processes(work: Callable[[Piece], Result], pieces: Sequence[Piece], count: int) -> Iterator[Result]:
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=1):
        # dispatched one by one: a kill loses no more than the pieces that were being worked on
        parallel = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1, pre_dispatch=2 * count)
    yield from parallel(delayed(alone)(work, piece) for piece in pieces)


def alone(work: Callable[[Piece], Result], piece: Piece) -> Result:
    """One piece, on one thread and without a bar of its own."""
    torch.set_num_threads(1)
    with progress.silent():
        return work(piece)
