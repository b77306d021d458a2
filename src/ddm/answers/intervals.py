"""Intervals: how far the true value may lie from a predicted one, by what predictions of retrainings missed.

Each retraining is predicted from all others. What that misses in the outputs, divided by its predicted deviation, is
one draw z_r ``(n, L)`` of the standardised error of all outputs together. Added to the outputs of a model, times the
predicted deviation of that model, the draws ±z_r give draws of its true outputs, and the objective of these gives draws
of its true value. The interval holds the middle 90 % of them. The retraining is the unit: outputs of one network err
together, so they count once.

Retrainings that share groups also share what is missed, so R of them are worth fewer independent errors, N
(``Posterior.effective``). Fewer than nine cannot show where 90 % end. Then the draws are normal with the covariance of
the z_r, and scaled to end where Student's distribution with N degrees of freedom does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ddm.answers.objectives import Objective
from ddm.answers.question import Batch
from ddm.data.inputs import X
from ddm.truth.evidence import Evidence
from ddm.truth.refined import RefinedModels
from ddm.truth.refinement import describe

NO_INTERVALS = "These effects have no intervals yet. Retraining gives them: ddm refine RUN --retrain 20"
"""The note beside effects before any retraining."""

LEVEL = 0.9
"""The share of true values that intervals should contain."""

_PERCENT = f"{100 * LEVEL:.0f} %"

ENOUGH = 9
"""Independent errors from which intervals rest on the retrainings alone."""

_MODELLED = 100
"""Draws if there are fewer independent errors."""

_MOST = 60
"""Draws at most: more narrow the interval's ends down very little."""


_TOGETHER = 2**24
"""Maximum number of drawn outputs at a time."""


class Intervals:
    """The intervals of an objective for models as their outputs pass by.

    models:    the refined models
    removed:   the perturbations ``(M, K)`` that are asked about
    objective: what is measured
    batch:     inputs ``x (n, ...)`` and labels
    """

    def __init__(
        self, models: RefinedModels, removed: np.ndarray, objective: Objective, batch: Batch, fast: bool = False
    ) -> None:
        self.models, self.objective, self.batch, self.fast = models, objective, batch, fast
        self.deviations = np.sqrt(np.concatenate([[0.0], models.variances(removed)]))
        self.ends: list[np.ndarray] = []

    def watch(self, stacks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Pass on stacks of logits ``(m, n, L)``, those of the target first, and find their intervals."""
        draws, base, start = None, None, 0
        for stack in stacks:
            if draws is None or base is None:
                draws, base = make_draws(self.models, self.batch[0], self.fast), stack[0]
            each = max(1, _TOGETHER // (draws.errors.numel() + 1))
            for some in stack.split(each):
                deviations = torch.as_tensor(self.deviations[start : start + len(some)]).to(some)
                labels = self.objective.labels_on(self.batch[1], base.device)
                self.ends.append(draws.ends(self.objective, some, deviations, base, labels))
                start += len(some)
            yield stack

    def of_effects(self) -> np.ndarray:
        """Ends ``(2, M, O)`` of the effect of each perturbation: value without the groups − value with all."""
        ends = np.concatenate(self.ends, axis=1)
        found: np.ndarray = ends[:, 1:] - ends[:, :1]
        return found

    @property
    def basis(self) -> str:
        """A phrase that says how many retrainings the intervals were computed from."""
        count = len(self.models.residuals.evidence)
        retrainings = f"{count} retraining{'s' if count > 1 else ''}"
        if self.models.residuals.posterior.effective < ENOUGH:
            return f"{_PERCENT} intervals modelled from {retrainings}, too few to be sure: retrain more (ddm refine)"
        return f"{_PERCENT} intervals from {retrainings}, each predicted by the others"


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of the standardised error of the outputs.

    errors: ``(D, n, L)``
    rank:   how many draws lie outside of the interval at each end; between whole numbers, its ends are interpolated
    """

    errors: Tensor
    rank: float

    def ends(self, objective: Objective, logits: Tensor, deviations: Tensor, base: Tensor, y: Tensor) -> np.ndarray:
        """Ends ``(2, m, O)`` of the interval of an objective's value, for each of m models.

        logits:     outputs ``(m, n, L)`` of the models
        deviations: standard deviations ``(m,)`` of what they miss, in units of the draws; NaN if it is not known
        base, y:    outputs of the target, and labels
        """
        unknown = deviations.isnan().cpu().numpy()
        moved = logits[:, None] + deviations.nan_to_num()[:, None, None, None] * self.errors
        whole = torch.cat([logits[:, None], moved], 1)
        values = objective.values([whole.flatten(0, 1)], base, y).double().cpu().numpy()
        values = values.reshape(*whole.shape[:2], -1)
        point, drawn = values[:, 0], np.sort(values[:, 1:], axis=1)
        low, high = _at(drawn, self.rank), _at(drawn[:, ::-1], self.rank)
        ends = np.stack([np.minimum(low, point), np.maximum(high, point)])
        return np.where(unknown[:, None], np.nan, ends)


def make_draws(models: RefinedModels, x: X, fast: bool = False, seed: int = 0) -> Draws:
    """Draws of the standardised error of the outputs of inputs ``x (n, ...)``."""
    residuals = models.residuals
    return draw_errors(*residuals.deviations(x, fast), residuals.posterior.effective, seed)


def draw_errors(missed: Tensor, variances: np.ndarray, effective: float, seed: int = 0) -> Draws:
    """Draws of the standardised error, from what predictions of R retrainings missed.

    missed:    what each retraining shows that the others do not predict ``(R, n, L)``
    variances: its predicted variances ``(R,)``
    effective: the number of independent errors that these are worth
    """
    missed = missed / torch.as_tensor(variances).sqrt().to(missed)[:, None, None]
    count = len(missed)
    if effective < ENOUGH:
        weights = np.random.default_rng(seed).standard_normal((_MODELLED // 2, count))
        effective, freedom = len(weights), effective
        largest_first = np.sort(np.abs(weights), axis=0)[None, ::-1]
        weights *= stats.t.ppf((1 + LEVEL) / 2, freedom) / _at(largest_first, _rank(len(weights), effective)).mean()
        missed = torch.einsum("dr,rnl->dnl", torch.as_tensor(weights / np.sqrt(count)).to(missed), missed)
    elif 2 * count > _MOST:
        missed = missed[torch.as_tensor(np.linspace(0, count - 1, _MOST // 2).round().astype(int))]
    return Draws(torch.cat([missed, -missed]), _rank(len(missed), min(effective, len(missed))))


def _rank(count: int, effective: float) -> float:
    """How many of ``count`` draws, and their negatives, lie outside of the interval at each end.

    The k-th largest of N independent absolute errors is exceeded by a new one with probability k / (N + 1). So its
    place among them, (k − ½) / N, is lower than 1 − LEVEL by (LEVEL − ½) / N.
    """
    outside = (1 - LEVEL) - (LEVEL - 0.5) / effective
    return max(0.0, count * outside - 0.5)


def _at(drawn: np.ndarray, rank: float) -> np.ndarray:
    """The values ``(m, O)`` at a place of the sorted draws ``(m, D, O)``, interpolated between two of them."""
    first = int(rank)
    found: np.ndarray = drawn[:, first] + (rank - first) * (drawn[:, first + 1] - drawn[:, first])
    return found


def describe_evidence(evidence: Evidence) -> str:
    """A sentence that counts the retrainings of the evidence by kind."""
    sizes = evidence.removed.sum(1)
    kinds = describe(*(int(count.sum()) for count in (sizes == 1, sizes > 1, sizes == 0)))
    return f"{len(sizes)} retrainings refine the effects of groups and give each a {_PERCENT} interval: {kinds}."
