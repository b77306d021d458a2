"""Refines stored changes of logits: applies the posterior and the intervals of the library without any network.

Changes are arrays ``(M, N, L)`` of M removals, N samples and L outputs. The log-odds of the correct class alone are
such an array with L = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.answers.intervals import Draws, draw_errors
from ddm.answers.objectives import Objective
from ddm.truth.posterior import Posterior, fit_spread
from ddm.truth.refined import corrected_changes
from ddm.truth.refinement import centred

_RESAMPLES = 2000
"""Resamples of the bootstrap."""


@dataclass(frozen=True, eq=False)
class Trials:
    """R retrainings: the groups that each left out ``(R, K)``, its batch order ``(R,)``, its changes ``(R, N, L)``."""

    removed: np.ndarray
    orders: np.ndarray
    changes: Tensor

    def __len__(self) -> int:
        return len(self.orders)

    def take(self, rows: np.ndarray) -> Trials:
        """Some of them, by position or mask."""
        return Trials(self.removed[rows], self.orders[rows], self.changes[torch.as_tensor(rows)])

    def join(self, other: Trials) -> Trials:
        """These and then others."""
        return Trials(
            np.vstack([self.removed, other.removed]),
            np.concatenate([self.orders, other.orders]),
            torch.cat([self.changes, other.changes]),
        )

    @property
    def alone(self) -> np.ndarray:
        """True for groups ``(K,)`` that a retraining left out alone."""
        left: np.ndarray = self.removed[self.removed.sum(1) == 1].any(0)
        return left


class RefinedChanges:
    """Predicted changes, corrected by retrainings.

    trials:  the retrainings; there may be none
    singles: predicted changes ``(K, N, L)`` without each group
    typical: the samples on which the parameters of the posterior are estimated
    """

    def __init__(self, trials: Trials, singles: Tensor, typical: slice) -> None:
        self.trials = trials
        predicted = torch.einsum("rk,knl->rnl", torch.as_tensor(trials.removed).to(singles), singles)
        if len(trials):
            seen = [_for_fit(part[:, typical]) for part in (trials.changes, predicted)]
            self.posterior = Posterior(
                trials.removed, trials.orders, fit_spread(trials.removed, trials.orders, seen[0], seen[1])
            )
            self.residuals = trials.changes - self.posterior.spread.scale * predicted

    def of(self, removed: np.ndarray, predicted: Tensor, order: int = 0) -> Tensor:
        """The corrected changes of removals ``(M, K)`` whose predicted changes are ``(M, N, L)``."""
        if not len(self.trials):
            return predicted
        scales = torch.full((len(removed),), self.posterior.spread.scale)
        gains = torch.as_tensor(self.posterior.gains(removed, order))
        return corrected_changes(predicted, scales, gains, self.residuals)

    def draws(self, samples: slice) -> Draws:
        """Draws of the standardised error of the outputs of some samples."""
        left, variances = self.posterior.left_out()
        residuals = self.residuals[:, samples]
        missed = torch.einsum("rs,snl->rnl", torch.as_tensor(left).to(residuals), residuals)
        return draw_errors(missed, variances, self.posterior.effective)

    def hits(
        self, objective: Objective, asked: Trials, predicted: Tensor, base: Tensor, labels: Tensor, samples: slice
    ) -> np.ndarray:
        """How often the true value lies in its 90 % interval, for each of M retrainings that are no evidence ``(M,)``.

        predicted: their predicted changes ``(M, N, L)``
        base:      logits ``(N, L)`` with all groups
        labels:    the labels of the chosen samples
        """
        base = base[samples]
        deviations = torch.as_tensor(np.sqrt(self.posterior.variances(asked.removed))).to(base)
        outputs = base + self.of(asked.removed, predicted)[:, samples]
        low, high = self.draws(samples).ends(objective, outputs, deviations, base, labels)
        true = objective.values([base + asked.changes[:, samples]], base, labels).numpy()
        inside: np.ndarray = ((low <= true) & (true <= high)).mean(1)
        return inside


def _for_fit(changes: Tensor) -> np.ndarray:
    """Logits minus their mean over classes; a single output as it is."""
    return centred(changes) if changes.shape[2] > 1 else changes.double().numpy()


def bootstrap_mean(hits: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """The mean over retrainings ``(M,)`` and its 95 % bootstrap interval; retrainings are drawn, not samples."""
    if not len(hits):
        return (float("nan"),) * 3
    drawn = np.random.default_rng(seed).integers(len(hits), size=(_RESAMPLES, len(hits)))
    low, high = np.quantile(hits[drawn].mean(1), [0.025, 0.975])
    return float(hits.mean()), float(low), float(high)
