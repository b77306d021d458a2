"""Random rows R with E[RᵀR] = Ḡ, the curvature of the training loss pooled over the trajectory.

    Ḡ = Σ_t ω_t mean_i J_t(x_i)ᵀ H_t(x_i) J_t(x_i),    J = ∂f/∂θ,  H = ∂²L/∂f²

is the generalised Gauss–Newton matrix at the checkpoints θ_t, with ω_t the share of the training around each. A sample
with random signs ε gives one row ``r = Jᵀ H^½ ε``, for which E[r rᵀ] = JᵀHJ. So M rows cost M backward passes, and no
P × P matrix is ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.gradients import output_gradients
from ddm.curvature.slicing import MAX_FLOATS
from ddm.data.inputs import at_once
from ddm.data.losses import SampleLoss
from ddm.data.samples import Samples
from ddm.data.tasks import Positions, Task
from ddm.errors import InputError
from ddm.training.target import Target

_BATCH = 64
"""Maximum samples per batch of rows."""

_LARGE = 2**20
"""Networks with more parameters than this get fewer rows."""

_SIGNS, _CHECKPOINT = 2**40, 2**20
"""Added to the seed for random signs and augmentation, and for the order of samples at each checkpoint."""

_MAX_OUTPUTS = 1024
"""Maximum outputs for which the Hessian of a loss that is not cross-entropy is computed."""

_MIN_HELD_OUT = 128
"""Samples held out if there are fewer samples than rows, but at most a fifth of all samples."""


class CurvatureRows:
    """The rows of a target on its training samples. Iterating again gives the same rows again.

    checkpoints: those over which the curvature is pooled, with weights ω ``(T,)``, Σω = 1
    count:       M, the number of rows, rounded so that every checkpoint has equally many
    held_out:    the last ``held_out`` rows of each checkpoint use samples that its other rows do not use
    keep:        hold the rows in memory after the first pass
    skip:        leave out the first ``skip`` samples that each checkpoint would use. With the same seed and skip = M/T
                 the rows use other samples than M rows without skip, as far as there are enough, and other signs
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        checkpoints: Sequence[int],
        weights: Tensor,
        count: int,
        seed: int = 0,
        held_out: int = 0,
        keep: bool = False,
        skip: int = 0,
    ) -> None:
        self.target, self.samples, self.seed, self.held_out, self.keep = target, samples, seed, held_out, keep
        self.skip = skip
        self.checkpoints, self.weights = list(checkpoints), weights
        self.per_checkpoint = max(1, round(count / len(self.checkpoints)))
        self._kept: list[Tensor] | None = None

    def __len__(self) -> int:
        return self.per_checkpoint * len(self.checkpoints)

    def batches(self, advance: Advance = lambda amount: None) -> Iterator[Tensor]:
        """R in batches ``(b, P)``; ``advance`` counts the rows that are computed."""
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        for batch in self._compute(advance):
            if self.keep:
                kept.append(batch)
            yield batch
        self._kept = kept if self.keep else None

    def forget(self) -> None:
        """Free the memory of the rows. They are computed again if they are needed."""
        self._kept = None

    @property
    def positions(self) -> Tensor:
        """The position ``(M,)`` of each row's sample in the training set."""
        return torch.cat([self._chosen(t) for t in self.checkpoints])

    def _chosen(self, t: int) -> Tensor:
        """Positions of the samples whose rows are computed at checkpoint t ``(M/T,)``."""
        # A seed for each checkpoint, so that the order does not depend on how many rows are drawn
        order = torch.Generator().manual_seed(self.seed + _CHECKPOINT * t)
        chosen = draw_in_rounds(len(self.samples), self.skip + self.per_checkpoint, order)[self.skip :]
        if self.held_out and len(self.samples) < self.per_checkpoint:
            chosen = _split(chosen[: len(self.samples)], self.per_checkpoint - self.held_out, self.held_out)
        return chosen

    def _compute(self, advance: Advance) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed + _SIGNS + (self.skip > 0))
        batch_size = max(1, min(at_once(_BATCH, self.samples.bytes_each), MAX_FLOATS // self.target.flat.size))
        for t, weight in zip(self.checkpoints, self.weights, strict=True):
            theta, fixed = self.target.at(t)
            for positions in self._chosen(t).split(batch_size):
                x, y = self.samples.batch(positions)
                x, y = self.target.as_trained(x, generator).to(self.target.device), y.to(self.target.device)
                vectors = loss_vectors(self.target.task, self.target.flat(theta, fixed, x).detach(), y, generator)
                rows = output_gradients(self.target, theta, fixed, x, vectors[:, None])[:, 0]
                yield rows.mul_(float(weight / self.per_checkpoint) ** 0.5)
                advance(len(positions))


def fewer_for_large(rows: int, size: int) -> int:
    """Fewer rows for a network with many parameters, whose rows do not fit the memory and must be recomputed."""
    return int(rows * min(1.0, _LARGE / size) ** 0.5)


def loss_vectors(task: Task, outputs: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """H^½ε ``(b, L)`` with random signs ε and H the Hessian of each sample's loss in its outputs ``(b, L)``."""
    signs = 2.0 * torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) - 1
    if task.loss.is_cross_entropy:
        return _cross_entropy_vectors(outputs, signs)
    if isinstance(task, Positions) and task.loss.name == task.usual_name:
        weights = task.weights(y).to(outputs).sqrt()[..., None]
        return (weights * _cross_entropy_vectors(task.unflatten(outputs), task.unflatten(signs))).flatten(1)
    if outputs.shape[1] > _MAX_OUTPUTS:
        raise InputError(
            f"the curvature of this loss is not known in closed form, and {outputs.shape[1]:,} outputs are too many to "
            "compute it: use torch's plain cross-entropy, or fewer outputs."
        )
    values, vectors = torch.linalg.eigh(_hessians(task.loss, outputs, y))
    return torch.einsum("bij,bj->bi", vectors, values.clamp(min=0).sqrt() * signs)


def _cross_entropy_vectors(logits: Tensor, signs: Tensor) -> Tensor:
    """H^½ε ``(..., L)`` of the cross-entropy of logits ``(..., L)``: H = diag(p) − ppᵀ."""
    p = logits.softmax(-1)
    drawn = signs * p.sqrt()
    return drawn - p * drawn.sum(-1, keepdim=True)


def _hessians(loss: SampleLoss, logits: Tensor, y: Tensor) -> Tensor:
    """∂²ℓ/∂f² ``(b, L, L)`` of each sample."""
    logits = logits.detach().requires_grad_()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(loss.each(logits, y).sum(), logits, create_graph=True)
        if not slopes.requires_grad:
            return torch.zeros(*logits.shape, logits.shape[1]).to(logits)
        columns = [torch.autograd.grad(slope, logits, retain_graph=True)[0] for slope in slopes.sum(0)]
    return torch.stack(columns, 1)


def draw_in_rounds(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """``wanted`` random positions below ``count``; every position is used before any is used again."""
    rounds = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:wanted]


def _split(order: Tensor, first: int, last: int) -> Tensor:
    """``first`` positions from ``order (n,)``, then ``last`` held-out positions that are not among the first.

    At least _MIN_HELD_OUT positions are held out, or a fifth of all if that is fewer. Positions are repeated where
    there are too few.
    """
    if len(order) < 2:
        return order.repeat(first + last)
    held_out = max(len(order) - first, min(len(order) // 5, _MIN_HELD_OUT), 1)
    parts = (order[:-held_out], first), (order[-held_out:], last)
    return torch.cat([part.repeat(-(-count // len(part)))[:count] for part, count in parts])
