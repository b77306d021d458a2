"""Fidelity: how far predicted effects agree with those of really retraining, measured one way everywhere.

An effect is a value without a group less the value with all, both retrained with one batch order. ``ddm.figures`` says
which figures there are and what each one means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddm.truth.effects import Effects
from ddm.truth.figures import FIGURES

_DRAWS = 300
"""Resamples of the bootstrap."""


@dataclass(frozen=True)
class Measured:
    """The value of a figure with its 95 % bootstrap interval over groups (or unions) and test samples."""

    value: float
    low: float
    high: float


def scored(found: Effects, true: Effects, *, seed: int = 0) -> dict[str, Measured]:
    """Every figure of predicted effects against true ones, with its interval."""
    return {
        name: _interval(figure.score, figure.effects(found), figure.effects(true), seed)
        for name, figure in FIGURES.items()
    }


def values(found: Effects, true: Effects) -> dict[str, float]:
    """Every figure of predicted effects against true ones."""
    return {name: figure.score(figure.effects(found), figure.effects(true)) for name, figure in FIGURES.items()}


def ceilings(orders: list[Effects]) -> dict[str, float]:
    """√(mean correlation of two retrainings) of each rank figure: what the expected effect would score against one."""
    pairs = [(a, b) for i, a in enumerate(orders) for b in orders[i + 1 :]]
    found = {}
    for name, figure in FIGURES.items():
        if figure.ranks:
            scores = [figure.score(figure.effects(a), figure.effects(b)) for a, b in pairs]
            agreement = np.mean(scores) if scores else np.nan
            found[name] = float(np.sqrt(max(agreement, 0.0)))
    return found


def _interval(
    score: Callable[[np.ndarray, np.ndarray], float], found: np.ndarray, true: np.ndarray, seed: int
) -> Measured:
    generator = np.random.default_rng(seed)
    rows, columns = found.shape
    draws = []
    for _ in range(_DRAWS if rows > 1 and columns else 0):
        chosen = np.ix_(generator.integers(rows, size=rows), generator.integers(columns, size=columns))
        draws.append(score(found[chosen], true[chosen]))
    kept = np.asarray(draws)[np.isfinite(draws)] if draws else np.array([])
    low, high = np.quantile(kept, [0.025, 0.975]) if len(kept) else (np.nan, np.nan)
    return Measured(score(found, true), float(low), float(high))
