"""Algorithm 1 of the paper: optimise synthetic samples until their gradients match those of the groups (Eq. 6).

    min over S_κ of Σ_t Dist(∇L(θ_t'; S_κ), ∓∇L(θ_t; D_κ)),    minus for reverse matching, plus for forward.

B groups are optimised at once. They share θ_t' and nothing else, so the result of a group does not depend on the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.data.inputs import tensor_of
from ddm.distil.checkpoints import Pair
from ddm.distil.gradient.distances import DISTANCES
from ddm.distil.settings import Settings
from ddm.distil.synset_gradients import prefers_vectorised, synset_gradients
from ddm.training import augmentation
from ddm.training.target import Target

_MAX_GROWTH = 1e3
"""Values that exceed this times the largest initial value (or 1) have exploded."""

_TOGETHER = 32
"""Maximum synthetic samples in one vectorised call: more need more memory and save hardly any time."""


@dataclass
class SyntheticSamples:
    """Images ``(B, ipc, ...)`` and targets ``(B, ipc, L)`` of B groups.

    stopped: by the row of a group, why its optimisation was stopped
    """

    images: Tensor
    targets: Tensor
    stopped: dict[int, str] = field(default_factory=dict)


def match_gradients(
    target: Target,
    wanted: Mapping[int, Tensor],
    pairs: Sequence[Pair],
    initial: SyntheticSamples,
    names: Sequence[str],
    settings: Settings,
    advance: Advance = lambda amount: None,
) -> SyntheticSamples:
    """Optimise synthetic samples of B groups for one step per pair of checkpoints.

    wanted:  by checkpoint t, the real gradients ∇L(θ_t; D_κ) ``(B, P)``
    names:   of the groups, for messages
    advance: counts synthetic samples, once for each step
    """
    optimisation = _Optimisation(target, initial, names, settings)
    sign = -1.0 if settings.matching == "reverse" else 1.0
    for step, (real_at, synset_at) in enumerate(pairs):
        checked = optimisation.step(step, synset_at, sign, wanted[real_at])
        optimisation.accept_step(checked, f"step {step + 1} of {len(pairs)}")
        advance(initial.images.shape[:2].numel())
    return optimisation.result


class _Optimisation:
    """Synthetic samples while they are optimised.

    learned: the tensors that the optimizer updates: images and, unless labels are hard, targets
    result:  images and targets after the last accepted step of each group
    """

    def __init__(self, target: Target, initial: SyntheticSamples, names: Sequence[str], settings: Settings) -> None:
        self.target, self.names, self.settings = target, names, settings
        self.hard = settings.labels == "hard"
        self.distance = DISTANCES[settings.distance](target.flat)
        self.result = SyntheticSamples(initial.images.clone(), initial.targets.clone())
        self.learned = [initial.images.clone().requires_grad_()]
        if not self.hard:
            self.learned.append(initial.targets.clone().requires_grad_())
        self._limits = [_MAX_GROWTH * tensor.detach().flatten(1).abs().amax(1).clamp(min=1) for tensor in self.learned]
        self._optimizer = _make_optimizer(self.learned, settings)
        together = max(1, _TOGETHER // settings.ipc) if prefers_vectorised(target) else 1
        self._chunks = torch.arange(len(names)).split(together)

    def step(self, number: int, checkpoint: int, sign: float, wanted: Tensor) -> list[Tensor]:
        """Update ``learned`` towards gradients ``sign · wanted (B, P)``; return distances and slopes for the checks."""
        theta, fixed = self.target.at(checkpoint)
        images = _augment(self.learned[0], self.settings, number)
        targets = self.result.targets if self.hard else self.learned[1]
        distances, slopes = [], [torch.zeros_like(tensor) for tensor in self.learned]
        for rows in self._chunks:
            gradients = synset_gradients(self.target, theta, fixed, images[rows], targets[rows], hard=self.hard)
            apart = self.distance(gradients, sign * wanted[rows].to(self.target.device))
            parts = torch.autograd.grad(apart.sum(), self.learned, retain_graph=images is not self.learned[0])
            distances.append(apart.detach())
            for slope, part in zip(slopes, parts, strict=True):
                slope[rows] = part[rows]
        for tensor, slope in zip(self.learned, slopes, strict=True):
            tensor.grad = slope.nan_to_num(0.0, 0.0, 0.0)
        self._optimizer.step()
        return [torch.cat(distances), *slopes]

    @torch.no_grad()
    def accept_step(self, checked: Sequence[Tensor], where: str) -> None:
        """Copy ``learned`` to ``result`` for each group whose step succeeded, and stop the other groups."""
        if not self.hard:
            targets = self.learned[1]
            targets -= (targets.sum(-1, keepdim=True) - 1) / targets.shape[-1]  # Σq̃ = 1
        self._stop_failed(checked, where)
        active = [row not in self.result.stopped for row in range(len(self.names))]
        going = torch.tensor(active, device=self.learned[0].device)
        self.result.images[going] = self.learned[0].detach()[going]
        if not self.hard:
            self.result.targets[going] = self.learned[1].detach()[going]

    def _stop_failed(self, checked: Sequence[Tensor], where: str) -> None:
        """Stop groups with a value in ``checked`` that is not finite, or with learned values that have exploded."""
        groups = len(self.names)
        finite = torch.stack([tensor.reshape(groups, -1).isfinite().all(1) for tensor in checked]).all(0)
        sizes = [tensor.flatten(1).abs().amax(1) for tensor in self.learned]
        small = torch.stack([size <= limit for size, limit in zip(sizes, self._limits, strict=True)]).all(0)
        for row in (~(finite & small)).nonzero()[:, 0].tolist():
            why = "its images exploded" if finite[row] else "its gradient became NaN or infinite"
            message = f"group {self.names[row]} stopped at {where}: {why}; lower the matching lr."
            self.result.stopped.setdefault(row, message)


def _make_optimizer(learned: list[Tensor], settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(learned, lr=settings.lr, momentum=0.5)
    return torch.optim.Adam(learned, lr=settings.lr)


def _augment(images: Tensor, settings: Settings, step: int) -> Tensor:
    """One random flip and shift per step, the same for all groups, so that it does not depend on the block."""
    if settings.augment == "none":
        return images
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    together = images.reshape(1, -1, *images.shape[-2:])
    return tensor_of(augmentation.augment(together, settings.augment, generator)).reshape(images.shape)
