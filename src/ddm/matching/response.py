"""The response Δ_κ: how far, and where to, the target moves when a group is absent and the other data push back.

    Δ_κ = (Ḡ + λI)⁻¹ ḡ_κ / (1 − a_κ),    ḡ_κ = (n_κ/n) Σ_t ω_t ∇L(θ_t; D_κ),    λ = 1/Σ learning rates

(learning rates divided by 1 − momentum; with Adam one λ for each parameter, whose steps it scales; weight decay added).
Ḡ and ḡ_κ are pooled over the whole trajectory, ω_t being a checkpoint's share of the training's length. Ḡ holds the
group's own curvature too, which is absent without it; along Δ_κ it makes up the fraction a_κ of the whole, so the step
is that much longer. Before this the response is linear in the group: that of a class is the sum of its clusters'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.curvature import Curvature
from ddm.datasets.samples import Samples
from ddm.gradients import along, loss_gradient
from ddm.matching.calibration import bend, dampings
from ddm.matching.pairs import real_checkpoints
from ddm.matching.settings import Settings
from ddm.progress import Advance
from ddm.target import Target

_LOOKS, _MEMBERS = 4, 64
"""Checkpoints and samples of a group at which its own curvature is looked at."""

_BATCH = 128
"""Samples whose gradient is taken at once."""

_MOST_OWN = 0.9
"""A group's own share of the curvature is taken for no more than this."""


class Responses:
    """The responses of groups of a target's training samples.

    settings:    checkpoints, samples a group, curvature rows, memory and seed
    checkpoints: others than the settings say
    damped:      λ in units of its default
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        settings: Settings,
        checkpoints: Sequence[int] | None = None,
        damped: float = 1.0,
    ) -> None:
        self.target, self.samples, self.settings = target, samples, settings
        self.checkpoints = list(checkpoints or real_checkpoints(settings, len(target.trajectory) - 1))
        self.weights = pooled_weights(target, self.checkpoints)
        self.curvature = Curvature(
            target,
            samples,
            self.checkpoints,
            self.weights,
            damped * dampings(target, samples),
            rows=settings.curvature,
            memory=settings.memory,
            seed=settings.seed,
        )

    def used(self, rows: np.ndarray) -> np.ndarray:
        """The samples of a group at ``rows`` that its gradient is taken of."""
        if len(rows) <= self.settings.samples:
            return rows
        generator = np.random.default_rng([self.settings.seed, len(rows), int(rows[0])])
        return np.sort(generator.choice(rows, self.settings.samples, replace=False))

    def pulls(self, members: Sequence[np.ndarray], advance: Advance = lambda amount: None) -> Tensor:
        """ḡ_κ ``(B, P)`` of groups given by position; ``advance`` counts samples passed forward and back."""
        pulls = torch.zeros(len(members), self.target.flat.size).to(self.target.theta)
        for t, weight in zip(self.checkpoints, self.weights.tolist(), strict=True):
            theta, fixed = self.target.at(t)
            for row, group in enumerate(members):
                rows = self.used(group)
                share = weight * len(group) / len(self.samples)
                pulls[row] += share * loss_gradient(self.target, theta, fixed, *self.samples.batch(rows), _BATCH)
                advance(len(rows))
        return pulls

    @property
    def _looks(self) -> np.ndarray:
        looks: np.ndarray = np.unique(np.linspace(0, len(self.checkpoints) - 1, _LOOKS).round().astype(int))
        return looks

    def looks(self, rows: np.ndarray) -> int:
        """How many samples are looked at for a group's own curvature."""
        return len(self._looks) * min(_MEMBERS, len(self.used(rows)))

    def own(
        self, responses: Tensor, pulls: Tensor, members: Sequence[np.ndarray], advance: Advance = lambda amount: None
    ) -> Tensor:
        """a_κ ``(B,)``, the group's own share of the curvature along its response; ``advance`` counts samples.

        The whole is Δᵀ(Ḡ + λI)Δ = Δᵀḡ_κ, so only the group's part has to be looked at.
        """
        looks = self._looks
        weights = self.weights[looks] / self.weights[looks].sum()
        part = torch.zeros(len(responses)).to(responses)
        for look, weight in zip(looks, weights.tolist(), strict=True):
            theta, fixed = self.target.at(self.checkpoints[look])
            for row, group in enumerate(members):
                x, y = (tensor.to(self.target.device) for tensor in self.samples.batch(self.used(group)[:_MEMBERS]))
                with torch.no_grad():
                    logits = self.target.flat(theta, fixed, x)
                change = along(self.target, theta, fixed, x, responses[row])
                share = weight * len(group) / len(self.samples)
                part[row] += share * bend(self.target.loss, logits, change, y)
                advance(len(x))
        whole = (responses * pulls).sum(1)
        return torch.where(whole > 0, part / whole, 0.0).nan_to_num(0.0).clamp(0, _MOST_OWN)


def pooled_weights(target: Target, checkpoints: Sequence[int]) -> Tensor:
    """ω ``(T,)``: the part of the training's length around each checkpoint (trapezoid rule), Σω = 1."""
    lengths = np.array([target.trajectory.lengths[t] for t in checkpoints])
    if not np.isfinite(lengths).all() or not lengths[-1] > lengths[0]:
        lengths = np.array([target.trajectory.steps[t] for t in checkpoints], dtype=float)
    if len(lengths) == 1:
        return torch.ones(1, dtype=torch.float64)
    gaps = np.diff(lengths)
    weights = np.concatenate([gaps, [0.0]]) / 2 + np.concatenate([[0.0], gaps]) / 2
    return torch.as_tensor(weights / weights.sum())
