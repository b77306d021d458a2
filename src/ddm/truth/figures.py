"""The figures of an audit: what each one means, how it is computed, and when it is good enough.

Each figure is one entry of ``FIGURES``. The audit's JSON, its tables, the report, the plot and the benchmarks all read
this registry, so a new entry appears in all of them.

    oracle_fraction  true shift of the prediction (Dist_1) at the group that is located for each test sample, less that
                     of a random group, over the largest possible less that of a random group: 1 always finds the best
                     group, 0 is random
    rho              Spearman between predicted and true change of the correct class's log-odds over groups, mean over
                     test samples
    rho_global       Spearman between predicted and true change of the mean validation loss over groups
    lds              as rho, over random unions of half of the groups instead of single groups
    slope            regression through the origin of the true on the predicted change of the log-odds, over groups and
                     test samples: 1 is the true size. The noise of retraining is in the true changes alone, so it does
                     not bias the slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddm.truth.effects import Effects


@dataclass(frozen=True)
class Figure:
    """One figure.

    name:    in JSON
    label:   in tables and plots
    meaning: what it measures, in words
    effects: which effects it compares, as an array of groups (or unions) × samples
    score:   the figure, from such an array of predicted effects and one of true effects
    ranks:   True if it is a rank correlation; only these have a noise ceiling
    use:     what users can do if the figure is good enough, after "trust it to"; None if it speaks for no use
    floor:   smallest value that is good enough, however poorly another retraining scores
    share:   share of the ceiling (without a ceiling: of what another retraining scores) that is good enough
    usual:   lowest and highest value that need no warning
    warning: said about a value outside ``usual``, which takes the place of {value}
    """

    name: str
    label: str
    meaning: str
    effects: Callable[[Effects], np.ndarray]
    score: Callable[[np.ndarray, np.ndarray], float]
    ranks: bool = False
    use: str | None = None
    floor: float = 0.0
    share: float = 0.5
    usual: tuple[float, float] = (-np.inf, np.inf)
    warning: str = ""


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


def slope(found: np.ndarray, true: np.ndarray) -> float:
    """Least squares through the origin of true on predicted effects, each ``(K, m)``; NaN where none is predicted."""
    squares = float((found * found).sum())
    return float((found * true).sum()) / squares if squares > 0 else float("nan")


_ALL = (
    Figure(
        name="oracle_fraction",
        label="oracle_fraction",
        meaning="finding the group that matters most (1 always, 0 as by chance)",
        effects=lambda effects: effects.shift,
        score=oracle_fraction,
        use="find the group behind a prediction",
        floor=0.5,
        share=0.75,
    ),
    Figure(
        name="rho",
        label="rho",
        meaning="order of groups by their effect on a prediction (1 the same, 0 unrelated)",
        effects=lambda effects: effects.margin,
        score=mean_spearman,
        ranks=True,
        use="order all groups by their effect on a prediction",
        floor=0.2,
    ),
    Figure(
        name="rho_global",
        label="rho_global",
        meaning="order of groups by their effect on the validation loss",
        effects=lambda effects: effects.validation[:, None],
        score=mean_spearman,
        ranks=True,
        use="order groups by their effect on the validation loss",
        floor=0.3,
    ),
    Figure(
        name="lds",
        label="lds",
        meaning="order of unions of groups by their effect on a prediction",
        effects=lambda effects: effects.unions,
        score=mean_spearman,
        ranks=True,
        use="say what removing many groups at once does",
        floor=0.3,
    ),
    Figure(
        name="slope",
        label="slope",
        meaning="size of the true effects over the predicted ones (1 the same size, 2 twice as large as predicted)",
        effects=lambda effects: effects.margin,
        score=slope,
        usual=(0.5, 2.0),
        warning="true effects are {value:.2g} times the predicted ones, so read their order, not their numbers",
    ),
)

FIGURES = {figure.name: figure for figure in _ALL}
"""All figures by name, in the order in which they are shown."""


def label_of(name: str) -> str:
    """A figure's label; its name for one that this version does not know."""
    return FIGURES[name].label if name in FIGURES else name


def meaning_of(name: str) -> str:
    """What a figure measures, in words, also for one that this version does not know."""
    return FIGURES[name].meaning if name in FIGURES else "a figure that this version does not know"
