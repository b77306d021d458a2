"""Draw samples at random so that the classes keep their proportions."""

from __future__ import annotations

import numpy as np


def choose_stratified(
    labels: np.ndarray, count: int, random: np.random.Generator, *, leave_one: bool = False
) -> np.ndarray:
    """Sorted positions of ``count`` of the ``(n,)`` labels, or of all if there are fewer.

    Each class gets its share up to rounding, and at least one sample if ``count`` is large enough.
    With ``leave_one``, at least one sample of each class is not chosen, so there may be fewer positions.
    """
    _, kinds, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quotas = _quotas(sizes, sizes - int(leave_one), count, random)
    # Positions sorted by class, in random order within each class. Unlike ``shuffle``, sorting by random keys gives the
    # same order in every version of numpy.
    order = np.lexsort((random.random(len(labels)), kinds))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(quotas, sizes)])


def _quotas(sizes: np.ndarray, room: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Samples to draw from each class ``(k,)``: in proportion to ``sizes``, at most ``room``, ``count`` in total."""
    count = min(count, int(room.sum()))
    fair = count * sizes / sizes.sum()
    quotas: np.ndarray = np.minimum(np.floor(fair).astype(np.int64), room)
    if count >= np.count_nonzero(room):
        quotas = np.maximum(quotas, np.minimum(room, 1))
    ties = random.random(len(sizes))
    while missing := count - int(quotas.sum()):
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(quotas < room if step > 0 else quotas > 1)
        furthest = np.lexsort((ties[free], step * (quotas - fair)[free]))
        quotas[free[furthest[: abs(missing)]]] += step
    return quotas
