"""Intervals: how far the true value may lie from a predicted one, by what predictions of retrainings missed.

Each retraining is predicted from all others. What that misses in the outputs, divided by its predicted deviation, is
one draw z_r ``(n, L)`` of the standardised error of all outputs together. Added to the outputs of a model, times the
predicted deviation of that model, the draws ±z_r give draws of its true outputs, and the objective of these gives draws
of its true value. The interval holds the middle 90 % of them. The retraining is the unit: outputs of one network err
together, so they count once.

Fewer than nine retrainings cannot show where 90 % end. Then the draws are normal with the covariance of the z_r, and
widened as Student's distribution with R degrees of freedom is.
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
from ddm.truth.refined import RefinedModels

LEVEL = 0.9
"""How often the true value shall lie in an interval."""

ENOUGH = 9
"""Retrainings from which intervals rest on the retrainings alone."""

_MODELLED = 40
"""Draws if there are fewer retrainings."""

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
                self.ends.append(draws.ends(self.objective, some, deviations, base, self.batch[1].to(base.device)))
                start += len(some)
            yield stack

    def of_effects(self) -> np.ndarray:
        """Ends ``(2, M, O)`` of the effect of each perturbation: value without the groups − value with all."""
        ends = np.concatenate(self.ends, axis=1)
        found: np.ndarray = ends[:, 1:] - ends[:, :1]
        return found

    @property
    def basis(self) -> str:
        """What the intervals rest on, in words."""
        count = len(self.models.residuals.evidence)
        retrainings = f"{count} retraining{'s' if count > 1 else ''}"
        if count < ENOUGH:
            return f"{LEVEL:.0%} intervals modelled from {retrainings}, too few to be sure: retrain more (ddm refine)"
        return f"{LEVEL:.0%} intervals from {retrainings}, each predicted by the others"


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of the standardised error of the outputs.

    errors: ``(D, n, L)``
    rank:   how many draws lie outside of the interval at each end
    """

    errors: Tensor
    rank: int

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
        low, high = drawn[:, self.rank], drawn[:, drawn.shape[1] - 1 - self.rank]
        ends = np.stack([np.minimum(low, point), np.maximum(high, point)])
        return np.where(unknown[:, None], np.nan, ends)


def make_draws(models: RefinedModels, x: Tensor, fast: bool = False, seed: int = 0) -> Draws:
    """Draws of the standardised error of the outputs of inputs ``x (n, ...)``."""
    return draws_of(*models.residuals.deviations(x, fast), seed)


def draws_of(missed: Tensor, variances: np.ndarray, seed: int = 0) -> Draws:
    """Draws from what R predictions of retrainings missed ``(R, n, L)``, and the variance that each has ``(R,)``."""
    missed = missed / torch.as_tensor(variances).sqrt().to(missed)[:, None, None]
    count = len(missed)
    if count < ENOUGH:
        generator = np.random.default_rng(seed)
        weights = generator.standard_normal((_MODELLED // 2, count)) / np.sqrt(count)
        wider = stats.t.ppf((1 + LEVEL) / 2, count) / stats.norm.ppf((1 + LEVEL) / 2)
        missed = wider * torch.einsum("dr,rnl->dnl", torch.as_tensor(weights).to(missed), missed)
    elif 2 * count > _MOST:
        missed = missed[torch.as_tensor(np.linspace(0, count - 1, _MOST // 2).round().astype(int))]
    draws = torch.cat([missed, -missed])
    outside = int((1 - LEVEL) / 2 * (len(draws) + 1))
    return Draws(draws, max(0, outside - 1))
