"""Fidelity: how far predicted effects agree with those of really retraining, measured one way everywhere.

    oracle_fraction  true shift of the prediction (Dist_1) at the group that is located for each test sample, less that
                     of a random group, over the largest possible less that of a random group: 1 always finds the best
                     group, 0 is random
    rho              Spearman between predicted and true change of the correct class's log-odds over groups, mean over
                     test samples
    rho_global       Spearman between predicted and true change of the mean validation loss over groups
    lds              as rho, over random unions of half of the groups instead of single groups

An effect is a value without a group less the value with all, both retrained with one batch order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddm.effects import Effects

FIGURES = ("oracle_fraction", "rho", "rho_global", "lds")

_DRAWS = 300
"""Of the bootstrap."""


@dataclass(frozen=True)
class Figure:
    """A measured figure with its 95 % bootstrap interval over groups (or unions) and test samples."""

    value: float
    low: float
    high: float


def scored(found: Effects, true: Effects, *, seed: int = 0) -> dict[str, Figure]:
    """Every figure of predicted effects against true ones, with its interval."""
    return {name: _interval(figure, of(found), of(true), seed) for name, (figure, of) in _FIGURES.items()}


def values(found: Effects, true: Effects) -> dict[str, float]:
    """Every figure of predicted effects against true ones."""
    return {name: figure(of(found), of(true)) for name, (figure, of) in _FIGURES.items()}


def ceilings(orders: list[Effects]) -> dict[str, float]:
    """√(mean correlation of two retrainings) of each rank figure: what the expected effect would score against one."""
    pairs = [(a, b) for i, a in enumerate(orders) for b in orders[i + 1 :]]
    found = {}
    for name, (figure, of) in _FIGURES.items():
        if figure is mean_spearman:
            agreement = np.mean([figure(of(a), of(b)) for a, b in pairs]) if pairs else np.nan
            found[name] = float(np.sqrt(max(agreement, 0.0)))
    return found


def oracle_fraction(found: np.ndarray, true: np.ndarray) -> float:
    """How much of what could be gained over a random group the located groups gain; each argument ``(K, m)``."""
    # looked at before the means, which may differ by rounding where all values are equal
    if len(found) < 2 or not np.ptp(true, axis=0).any():
        return float("nan")
    located = np.take_along_axis(true, found.argmax(0)[None], 0).mean()
    random, best = true.mean(), true.max(0).mean()
    return float((located - random) / (best - random)) if best > random else float("nan")


def mean_spearman(found: np.ndarray, true: np.ndarray) -> float:
    """Mean over columns of Spearman's correlation over rows, each argument ``(K, m)``; 0 where nothing differs."""
    if len(found) < 2:
        return float("nan")
    from scipy.stats import rankdata  # slow to import, and most commands do without

    a, b = (rankdata(values, axis=0) for values in (found, true))
    a, b = a - a.mean(0), b - b.mean(0)
    norms = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return float(np.divide((a * b).sum(0), norms, out=np.zeros_like(norms), where=norms > 0).mean())


_FIGURES: dict[str, tuple[Callable[[np.ndarray, np.ndarray], float], Callable[[Effects], np.ndarray]]] = {
    "oracle_fraction": (oracle_fraction, lambda effects: effects.shift),
    "rho": (mean_spearman, lambda effects: effects.margin),
    "rho_global": (mean_spearman, lambda effects: effects.validation[:, None]),
    "lds": (mean_spearman, lambda effects: effects.unions),
}
"""How each figure is computed, and from which effects."""


def _interval(
    figure: Callable[[np.ndarray, np.ndarray], float], found: np.ndarray, true: np.ndarray, seed: int
) -> Figure:
    generator = np.random.default_rng(seed)
    rows, columns = found.shape
    draws = []
    for _ in range(_DRAWS if rows > 1 and columns else 0):
        chosen = np.ix_(generator.integers(rows, size=rows), generator.integers(columns, size=columns))
        draws.append(figure(found[chosen], true[chosen]))
    kept = np.asarray(draws)[np.isfinite(draws)] if draws else np.array([])
    low, high = np.quantile(kept, [0.025, 0.975]) if len(kept) else (np.nan, np.nan)
    return Figure(figure(found, true), float(low), float(high))
