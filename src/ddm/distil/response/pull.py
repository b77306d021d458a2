"""The pulls ḡ_κ = (n_κ/n) Σ_t ω_t ∇L(θ_t; D_κ) of groups, a few groups a piece, wherever the pieces run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.compute import engine
from ddm.compute.backends import Place
from ddm.compute.progress import Advance
from ddm.curvature.clipping import clipped_gradient
from ddm.curvature.gradients import loss_gradient
from ddm.data.samples import Samples
from ddm.distil.matching import worthwhile
from ddm.training.target import Target

_BATCH, _FEWER, _LARGE = 256, 64, 2**20
"""Samples whose gradient is taken at once, and those of networks of more than _LARGE parameters."""

_GROUPS, _NUMBERS = 4, 2**24
"""Groups of a piece, and numbers that it returns, at most."""


@dataclass(frozen=True)
class Pulled:
    """A group whose pull is wanted: the positions of the samples that its gradient is taken of, and n_κ/n."""

    rows: np.ndarray
    share: float


def pulls_of(
    target: Target,
    samples: Samples,
    checkpoints: Sequence[int],
    weights: Tensor,
    groups: Sequence[Pulled],
    where: engine.Engine = None,
    advance: Advance = lambda amount: None,
    limits: Sequence[float] | None = None,
) -> Tensor:
    """ḡ ``(B, P)`` with weights ω ``(T,)`` of T checkpoints; ``advance`` counts samples passed forward and back.

    With ``limits`` the gradient of each sample at θ_t is no longer than the limit of t.
    Little work, that of a GPU and that of a piece stays in this process unless ``where`` says otherwise.
    """
    pulls = torch.zeros(len(groups), target.flat.size).to(target.theta)
    where = worthwhile(where, target, len(checkpoints) * sum(len(group.rows) for group in groups))
    pieces = _Pieces(samples, groups, max(1, min(_GROUPS, _NUMBERS // target.flat.size)))
    near = target.at_hand(checkpoints, Place.of(where))
    numbers = checkpoints if near is target else range(len(checkpoints))
    pull = _Pull(near, numbers, weights.tolist(), limits)
    for start, found in engine.each(pull, pieces, engine=where, what=None):
        pulls[start : start + len(found)] = found.to(pulls)
        advance(len(checkpoints) * sum(len(group.rows) for group in groups[start : start + len(found)]))
    return pulls


@dataclass(frozen=True)
class _Some:
    """Some of the groups, from number ``start`` on: the samples that the gradient of each is taken of, and n_κ/n."""

    start: int
    groups: tuple[tuple[Samples, float], ...]

    def __str__(self) -> str:
        return f"groups {self.start} to {self.start + len(self.groups) - 1}"


class _Pieces(Sequence[_Some]):
    """Groups, ``each`` to a piece. A piece takes its samples with it, and no others, when its turn comes."""

    def __init__(self, samples: Samples, groups: Sequence[Pulled], each: int) -> None:
        self.samples, self.groups, self.each = samples, groups, each

    def __len__(self) -> int:
        return -(-len(self.groups) // self.each)

    def __getitem__(self, number: int) -> _Some:  # type: ignore[override]
        start = number * self.each
        groups = self.groups[start : start + self.each]
        return _Some(start, tuple((self.samples[group.rows], group.share) for group in groups))


@dataclass(frozen=True)
class _Pull:
    """Finds the pulls ``(b, P)`` of some groups, and says from which number on."""

    target: Target
    checkpoints: Sequence[int]
    weights: Sequence[float]
    limits: Sequence[float] | None = None

    def __call__(self, some: _Some) -> tuple[int, Tensor]:
        pulls = torch.zeros(len(some.groups), self.target.flat.size, dtype=self.target.theta.dtype)
        for row, (samples, share) in enumerate(some.groups):
            x, y = samples.batch()
            for place, (t, weight) in enumerate(zip(self.checkpoints, self.weights, strict=True)):
                pulls[row] += weight * share * self._gradient(t, place, x, y).cpu()
        return some.start, pulls

    def _gradient(self, t: int, place: int, x: Tensor, y: Tensor) -> Tensor:
        """∇L(θ_t) of a group ``(P,)``, t the checkpoint in this place among them."""
        theta, fixed = self.target.at(t)
        if self.limits is not None:
            return clipped_gradient(self.target, theta, fixed, x, y, self.limits[place])
        size = _BATCH if self.target.flat.size <= _LARGE else _FEWER
        return loss_gradient(self.target, theta, fixed, x, y, size)
