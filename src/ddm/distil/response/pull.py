"""The pulls ḡ_κ = (n_κ/n) Σ_t ω_t ∘ ∇L(θ_t; D_κ) of groups, computed in tasks of a few groups each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.compute import engine
from ddm.compute.backends import Backend
from ddm.compute.progress import Advance
from ddm.curvature.clipping import clipped_gradient
from ddm.curvature.gradients import loss_gradient
from ddm.curvature.step_weights import StepWeights
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.distil.matching import engine_for
from ddm.networks.state import State
from ddm.training.target import Target

_BATCH, _SMALL_BATCH, _LARGE = 256, 64, 2**20
"""Samples per backward pass: _BATCH, or _SMALL_BATCH for networks with more than _LARGE parameters."""

_TURNS, _MIN_TURN = 2, 128
"""The samples of a group take turns: each checkpoint uses every _TURNS-th of them, if that leaves at least _MIN_TURN.
Gradients at neighbouring checkpoints are alike, so this loses little; with fewer samples it did for a ResNet."""

_GROUPS, _FLOATS, _BYTES = 4, 2**24, 2**28
"""Maximum groups per task, maximum floats that a task returns, and maximum bytes of its inputs."""


@dataclass(frozen=True)
class GroupSamples:
    """A group: the positions of the samples from which its gradient is computed, and its share n_κ/n of all samples."""

    rows: np.ndarray
    share: float


def group_pulls(
    target: Target,
    samples: Samples,
    checkpoints: Sequence[int],
    weights: StepWeights,
    groups: Sequence[GroupSamples],
    where: engine.Engine = None,
    advance: Advance = lambda amount: None,
    limits: Sequence[float] | None = None,
    segments: Sequence[int] | None = None,
) -> Tensor:
    """ḡ ``(B, P)`` with the weights of T checkpoints; ``advance`` counts backward passes of samples.

    limits:   maximum norm of a sample's gradient at each checkpoint
    segments: for each checkpoint the number of its segment, from 0 on; then the pulls ``(B, S, P)`` of S segments
    """
    segments = segments or [0] * len(checkpoints)
    parts = max(segments) + 1
    pulls = torch.zeros(len(groups), parts, target.flat.size).to(target.theta)
    where = engine_for(where, target, len(checkpoints) * sum(len(group.rows) for group in groups))
    largest = max((len(group.rows) for group in groups), default=1) * samples.bytes_each
    each = min(_GROUPS, _FLOATS // (parts * target.flat.size), _BYTES // max(1, largest))
    tasks = _Tasks(samples, groups, max(1, each))
    local = target.for_workers(checkpoints, Backend.parse(where))
    numbers = checkpoints if local is target else range(len(checkpoints))
    work = _Pull(local, numbers, weights, segments, limits)
    for start, found in engine.run_tasks(work, tasks, engine=where, description=None):
        pulls[start : start + len(found)] = found.to(pulls)
        advance(len(checkpoints) * sum(len(group.rows) for group in groups[start : start + len(found)]))
    pulls.div_(weights.total(target))
    return pulls if parts > 1 else pulls[:, 0]


@dataclass(frozen=True)
class _Task:
    """Groups from number ``start`` on, each with its samples and its share n_κ/n."""

    start: int
    groups: tuple[tuple[Samples, float], ...]

    def __str__(self) -> str:
        return f"groups {self.start} to {self.start + len(self.groups) - 1}"


class _Tasks(Sequence[_Task]):
    """Tasks of ``each`` groups. A task is built when its turn comes and carries its own samples only."""

    def __init__(self, samples: Samples, groups: Sequence[GroupSamples], each: int) -> None:
        self.samples, self.groups, self.each = samples, groups, each

    def __len__(self) -> int:
        return -(-len(self.groups) // self.each)

    def __getitem__(self, number: int) -> _Task:  # type: ignore[override]
        start = number * self.each
        groups = self.groups[start : start + self.each]
        return _Task(start, tuple((self.samples[group.rows].in_memory(), group.share) for group in groups))


@dataclass(frozen=True)
class _Pull:
    """Computes the pulls × W̄ ``(b, S, P)`` of a task's groups, and returns the number of the first group with them."""

    target: Target
    checkpoints: Sequence[int]
    weights: StepWeights
    segments: Sequence[int]
    limits: Sequence[float] | None = None

    def __call__(self, task: _Task) -> tuple[int, Tensor]:
        shape = len(task.groups), max(self.segments) + 1, self.target.flat.size
        pulls = torch.zeros(shape, dtype=self.target.theta.dtype)
        batches = [samples.batch() for samples, _ in task.groups]
        generators = [torch.Generator().manual_seed(task.start + row) for row in range(len(batches))]
        for position, t in enumerate(self.checkpoints):
            state, weight = self.target.at(t), self.weights.at(self.target, position, t)
            for row, (x, y) in enumerate(batches):
                turns = _TURNS if len(x) >= _TURNS * _MIN_TURN else 1
                some = slice(position % turns, None, turns)
                seen = self.target.as_trained(x[some], generators[row])
                gradient = self._gradient(position, *state, seen, y[some]).cpu()
                pulls[row, self.segments[position]] += weight * gradient
        shares = torch.tensor([share for _, share in task.groups]).to(pulls)
        return task.start, pulls.mul_(shares[:, None, None])

    def _gradient(self, position: int, theta: Tensor, fixed: State, x: X, y: Tensor) -> Tensor:
        """∇L(θ) ``(P,)`` of a group at the checkpoint at this position."""
        if self.limits is not None:
            return clipped_gradient(self.target, theta, fixed, x, y, self.limits[position])
        batch_size = _BATCH if self.target.flat.size <= _LARGE else _SMALL_BATCH
        return loss_gradient(self.target, theta, fixed, x, y, batch_size)
