"""The response Δ_κ: how far, and where to, the target moves when a group is absent and the other data push back.

    Δ_κ = c_κ (Ḡ + λI)⁻¹ ḡ_κ,    ḡ_κ = (n_κ/n) Σ_t ω_t ∇L(θ_t; D_κ),    λ = 1/Σ learning rates

(learning rates divided by 1 − momentum; with Adam one λ for each parameter, whose steps it scales; weight decay added).
Ḡ and ḡ_κ are pooled over the whole trajectory, ω_t being a checkpoint's share of the training's length. Before it has
its length c_κ the response is linear in the group: that of a class is the sum of its clusters'. The length is where the
loss of the others is least along d = (Ḡ + λI)⁻¹ ḡ_κ, with the curvature H_κ of the group itself taken away, which is
absent without it:

    c_κ = dᵀḡ_κ / (s dᵀḡ_κ − dᵀ(n_κ/n)H_κd),    dᵀḡ_κ = dᵀ(Ḡ + λI)d.

The solve bends d away from the rows that estimate Ḡ, so that they show too little curvature along it; s ≥ 1 says how
much too little, on the whole of some groups, by rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature.clipping import limits
from ddm.curvature.gradients import along
from ddm.curvature.rows import Curvature, shrunk
from ddm.data.samples import Samples
from ddm.distil.checkpoints import real_checkpoints
from ddm.distil.gradient.calibration import bend, dampings
from ddm.distil.response.pull import Pulled, pulls_of
from ddm.distil.settings import Settings
from ddm.training.target import Target

_LOOKS, _MEMBERS = 4, 64
"""Checkpoints and samples of a group at which its own curvature is looked at."""

_FRESH = 1024
"""Rows of curvature that lengths are found with; fewer for networks of many parameters."""

_MOST_OWN = 0.9
"""A group's own share of the curvature is taken for no more than this."""


class Responses:
    """The responses of groups of a target's training samples.

    settings:    checkpoints, samples a group, curvature rows, memory and seed
    checkpoints: others than the settings say
    damped:      λ in units of its default
    engine:      where pulls are computed
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        settings: Settings,
        checkpoints: Sequence[int] | None = None,
        damped: float = 1.0,
        engine: Engine = None,
    ) -> None:
        self.target, self.samples, self.settings, self.engine = target, samples, settings, engine
        self.checkpoints = list(checkpoints or real_checkpoints(settings, len(target.trajectory) - 1))
        self.weights = pooled_weights(target, self.checkpoints)
        self._damping = damped * dampings(target, samples)
        self.curvature = self._curvature(settings.curvature, settings.seed)

    def _curvature(self, rows: int | None, seed: int) -> Curvature:
        memory = self.settings.memory
        return Curvature(self.target, self.samples, self.checkpoints, self.weights, self._damping, rows, memory, seed)

    def used(self, rows: np.ndarray) -> np.ndarray:
        """The samples of a group at ``rows`` that its gradient is taken of."""
        if len(rows) <= self.settings.samples:
            return rows
        generator = np.random.default_rng([self.settings.seed, len(rows), int(rows[0])])
        return np.sort(generator.choice(rows, self.settings.samples, replace=False))

    def pulls(self, members: Sequence[np.ndarray], advance: Advance = lambda amount: None) -> Tensor:
        """ḡ_κ ``(B, P)`` of groups given by position; ``advance`` counts samples passed forward and back."""
        groups = [Pulled(self.used(rows), len(rows) / len(self.samples)) for rows in members]
        return pulls_of(
            self.target, self.samples, self.checkpoints, self.weights, groups, self.engine, advance, self._limits
        )

    @cached_property
    def _limits(self) -> list[float] | None:
        """How long the gradient of a sample may be at each checkpoint."""
        if self.settings.clip is None:
            return None
        return limits(self.target, self.samples, self.checkpoints, self.settings.clip, self.settings.seed)

    @property
    def _looks(self) -> np.ndarray:
        looks: np.ndarray = np.unique(np.linspace(0, len(self.checkpoints) - 1, _LOOKS).round().astype(int))
        return looks

    def looks(self, rows: np.ndarray) -> int:
        """How many samples are looked at for a group's own curvature."""
        return len(self._looks) * min(_MEMBERS, len(self.used(rows)))

    def overlooked(self, pulls: Tensor) -> float:
        """s: the curvature along responses to pulls ``(B, P)`` by rows that the solve has not seen, over its own."""
        directions = self.curvature.solve(pulls)
        return max(1.0, float(self.unseen(directions).sum() / (directions * pulls).sum()))

    def lengthened(
        self,
        directions: Tensor,
        pulls: Tensor,
        members: Sequence[np.ndarray],
        overlooked: float,
        advance: Advance = lambda amount: None,
    ) -> Tensor:
        """c_κ d_κ ``(B, P)`` of directions d ``(B, P)``, given s; ``advance`` counts samples."""
        seen = (directions * pulls).sum(1)
        whole = overlooked * seen
        left = whole - torch.minimum(self.own(directions, members, advance), _MOST_OWN * whole)
        return directions * torch.where(left > 0, seen / left, 1.0)[:, None]

    def unseen(self, directions: Tensor) -> Tensor:
        """dᵀ(Ḡ' + λI)d ``(B,)`` with rows of curvature that the solve has not seen."""
        found = (self._damping * directions.square()).sum(1)
        for rows in self._curvature(shrunk(_FRESH, self.target.flat.size), self.settings.seed + 1).made():
            found += (rows @ directions.T).square().sum(0)
        return found

    def own(self, directions: Tensor, members: Sequence[np.ndarray], advance: Advance = lambda amount: None) -> Tensor:
        """dᵀ(n_κ/n)H_κd ``(B,)``, the group's own curvature along a direction; ``advance`` counts samples."""
        looks = self._looks
        weights = self.weights[looks] / self.weights[looks].sum()
        found = torch.zeros(len(directions)).to(directions)
        for look, weight in zip(looks, weights.tolist(), strict=True):
            theta, fixed = self.target.at(self.checkpoints[look])
            for row, group in enumerate(members):
                x, y = (tensor.to(self.target.device) for tensor in self.samples.batch(self.used(group)[:_MEMBERS]))
                logits, change = along(self.target, theta, fixed, x, directions[row])
                share = weight * len(group) / len(self.samples)
                found[row] += share * bend(self.target.loss, logits, change, y)
                advance(len(x))
        return found


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
