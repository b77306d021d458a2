"""The figures of an audit: how far predicted effects agree with those of retraining.

Each figure is one entry of ``FIGURES``: what it means, how it is computed, and when it is good enough. The audit's
JSON, its tables, the report, the plot and the benchmarks all read this registry, so a new entry appears in all of them.

    oracle_fraction  (located − random) / (best − random): the mean true shift of the prediction (Dist_1) over test
                     samples, for removing the group that the datamodel locates, a random group, and the best group.
                     1 always finds the best group, 0 is as good as chance
    rho              Spearman correlation over groups between the predicted and the true change of the correct class's
                     log-odds, mean over test samples
    rho_global       Spearman correlation over groups between the predicted and the true change of the mean validation
                     loss
    lds              as rho, over random unions of half of the groups instead of single groups
    slope            regression through the origin of the true on the predicted change of the log-odds, over groups and
                     test samples. 1 means that predicted effects have the true size. The noise of retraining affects
                     only the true changes, so it does not bias the slope

Every figure has a 95 % bootstrap interval over groups (or unions) and test samples. Rank correlations have a ceiling
too: the score of the noise-free effect against one noisy retraining.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddm.truth.effects import Effects

_RESAMPLES = 300
"""Resamples of the bootstrap."""

Score = Callable[[np.ndarray, np.ndarray], float]
"""``score(predicted, true)`` of two arrays of groups (or unions) × samples."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    name:    key in JSON
    label:   name in tables and plots
    meaning: what the figure measures, in words
    effects: selects the effects that the figure compares, as an array of groups (or unions) × samples
    score:   computes the figure from an array of predicted effects and one of true effects
    ranks:   True for a rank correlation; only these have a noise ceiling
    use:     what the datamodel does well if the figure is good enough, to be answered by yes or no; None if it
             supports no use
    floor:   smallest value that is good enough, however poorly another retraining scores
    share:   fraction of the ceiling (without a ceiling: of another retraining's score) that is good enough
    usual:   lowest and highest value that need no warning
    warning: sentence about a value outside ``usual``; {value} stands for the value
    """

    name: str
    label: str
    meaning: str
    effects: Callable[[Effects], np.ndarray]
    score: Score
    ranks: bool = False
    use: str | None = None
    floor: float = 0.0
    share: float = 0.5
    usual: tuple[float, float] = (-np.inf, np.inf)
    warning: str = ""


def oracle_fraction(predicted: np.ndarray, true: np.ndarray) -> float:
    """Fraction of the best possible gain over a random group that the located groups reach; arguments ``(K, m)``."""
    # Compared before averaging: the means of equal values may differ by rounding.
    if len(predicted) < 2 or not np.ptp(true, axis=0).any():
        return float("nan")
    located = np.take_along_axis(true, predicted.argmax(0)[None], 0).mean()
    random, best = true.mean(), true.max(0).mean()
    return float((located - random) / (best - random)) if best > random else float("nan")


def mean_spearman(predicted: np.ndarray, true: np.ndarray) -> float:
    """Mean over columns of Spearman's correlation over rows, each argument ``(K, m)``; 0 for constant columns."""
    if len(predicted) < 2:
        return float("nan")
    from scipy.stats import rankdata  # slow to import, and most commands do not need it

    a, b = (rankdata(values, axis=0) for values in (predicted, true))
    a, b = a - a.mean(0), b - b.mean(0)
    norms = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return float(np.divide((a * b).sum(0), norms, out=np.zeros_like(norms), where=norms > 0).mean())


def slope(predicted: np.ndarray, true: np.ndarray) -> float:
    """Least squares through the origin of true on predicted effects, each ``(K, m)``; NaN if all predictions are 0."""
    squares = float((predicted * predicted).sum())
    return float((predicted * true).sum()) / squares if squares > 0 else float("nan")


_ALL = (
    Figure(
        name="oracle_fraction",
        label="finding the group",
        meaning="how well it finds the group with the largest effect on a prediction (1 always finds it, 0 is chance)",
        effects=lambda effects: effects.shift,
        score=oracle_fraction,
        use="Finds the group behind a prediction",
        floor=0.5,
        share=0.75,
    ),
    Figure(
        name="rho",
        label="ordering groups",
        meaning="how well it orders groups by their effect on a prediction (1 is the true order, 0 is chance)",
        effects=lambda effects: effects.margin,
        score=mean_spearman,
        ranks=True,
        use="Orders groups by their effect on a prediction",
        floor=0.2,
    ),
    Figure(
        name="rho_global",
        label="ordering groups overall",
        meaning="how well it orders groups by their effect on the validation loss",
        effects=lambda effects: effects.validation[:, None],
        score=mean_spearman,
        ranks=True,
        use="Orders harmful groups",
        floor=0.3,
    ),
    Figure(
        name="lds",
        label="removing many groups",
        meaning="how well it orders unions of groups by their effect on a prediction",
        effects=lambda effects: effects.unions,
        score=mean_spearman,
        ranks=True,
        use="Foresees the removal of many groups",
        floor=0.3,
    ),
    Figure(
        name="slope",
        label="size of effects",
        meaning="true effects divided by predicted effects (1 is the same size, 2 is twice as large as predicted)",
        effects=lambda effects: effects.margin,
        score=slope,
        usual=(0.5, 2.0),
        warning="Before these retrainings corrected them, true effects were {value:.2g} times the predicted ones",
    ),
)

FIGURES = {figure.name: figure for figure in _ALL}
"""All figures by name, in the order of tables and plots."""


def label_of(name: str) -> str:
    """The label of a figure; its name if this version does not know it."""
    return FIGURES[name].label if name in FIGURES else name


def meaning_of(name: str) -> str:
    """Describe in words what a figure measures, also a figure that this version does not know."""
    return FIGURES[name].meaning if name in FIGURES else "a figure that this version does not know"


@dataclass(frozen=True)
class Estimate:
    """The value of a figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def score_figures(predicted: Effects, true: Effects) -> dict[str, float]:
    """Every figure of predicted effects against true ones."""
    return {name: figure.score(figure.effects(predicted), figure.effects(true)) for name, figure in FIGURES.items()}


def estimate_figures(predicted: Effects, true: Effects, *, seed: int = 0) -> dict[str, Estimate]:
    """Every figure of predicted effects against true ones, with its interval."""
    return {
        name: _bootstrap(figure.score, figure.effects(predicted), figure.effects(true), seed)
        for name, figure in FIGURES.items()
    }


def probability_error(predicted: Effects, true: Effects) -> float:
    """90 % of the changes of the correct class's probability are predicted within this, over groups and samples."""

    def probability(log_odds: np.ndarray) -> np.ndarray:
        found: np.ndarray = 0.5 * (1 + np.tanh(log_odds / 2))
        return found

    changes = (probability(one.base + one.margin) - probability(one.base) for one in (predicted, true))
    return float(np.quantile(np.abs(np.subtract(*changes)), 0.9))


def noise_ceilings(retrainings: list[Effects]) -> dict[str, float]:
    """√(mean correlation of two retrainings) of each rank figure, the expected score of the noise-free effect."""
    pairs = [(a, b) for i, a in enumerate(retrainings) for b in retrainings[i + 1 :]]
    ceilings = {}
    for name, figure in FIGURES.items():
        if figure.ranks:
            scores = [figure.score(figure.effects(a), figure.effects(b)) for a, b in pairs]
            agreement = np.mean(scores) if scores else np.nan
            ceilings[name] = float(np.sqrt(max(agreement, 0.0)))
    return ceilings


def _bootstrap(score: Score, predicted: np.ndarray, true: np.ndarray, seed: int) -> Estimate:
    generator = np.random.default_rng(seed)
    rows, columns = predicted.shape
    scores = []
    for _ in range(_RESAMPLES if rows > 1 and columns else 0):
        drawn = np.ix_(generator.integers(rows, size=rows), generator.integers(columns, size=columns))
        scores.append(score(predicted[drawn], true[drawn]))
    finite = np.asarray(scores)[np.isfinite(scores)] if scores else np.array([])
    low, high = np.quantile(finite, [0.025, 0.975]) if len(finite) else (np.nan, np.nan)
    return Estimate(score(predicted, true), float(low), float(high))
