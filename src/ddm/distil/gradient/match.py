"""Reverse and forward gradient matching (Algorithm 1, Eq. 6) of B groups at once.

min over S_κ of Σ_t Dist(∇L(θ_{t'}; S_κ), ∓∇L(θ_t; D_κ)): minus for ``reverse``, plus for ``forward``. The groups
share θ_{t'} and nothing else, so what becomes of one does not depend on the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, vmap

from ddm.compute.progress import Advance
from ddm.distil.checkpoints import Pair
from ddm.distil.gradient.distances import DISTANCES
from ddm.distil.settings import Settings
from ddm.training import augmentation
from ddm.training.target import Target

_LARGEST = 1e3
"""A group has exploded whose values exceed this times the largest they started from, or 1."""

_FEW_PARAMETERS = 500_000
"""Up to which one vectorised call for all groups beats a loop over them on a CPU (bench/bench_vectorised.py)."""


_TOGETHER = 32
"""Synthetic samples in one vectorised call: more take more memory for their activations and hardly less time."""


@dataclass
class Distilled:
    """Images ``(B, ipc, ...)`` and targets ``(B, ipc, L)``, with why a group was stopped, by its row."""

    images: Tensor
    targets: Tensor
    stopped: dict[int, str] = field(default_factory=dict)


def synset_gradients(
    target: Target,
    theta: Tensor,
    fixed: Mapping[str, Tensor],
    images: Tensor,
    targets: Tensor,
    *,
    hard: bool,
    vectorised: bool | None = None,
) -> Tensor:
    """∇_θ L(θ; S_κ) ``(B, P)`` of images ``(B, ipc, ...)``, differentiable in images and targets."""

    def loss(at: Tensor, x: Tensor, q: Tensor) -> Tensor:
        return target.loss(target.flat(at, fixed, x), q)

    labels = targets.argmax(-1) if hard else targets
    if prefers_vectorised(target) if vectorised is None else vectorised:
        with contextlib.suppress(
            RuntimeError
        ):  # networks that cannot be vectorised, for example by data-dependent code
            gradients: Tensor = vmap(grad(loss), in_dims=(None, 0, 0))(theta, images, labels)
            return gradients
    differentiable = images.requires_grad or targets.requires_grad
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        rows = [
            torch.autograd.grad(loss(theta, x, q), theta, create_graph=differentiable)[0]
            for x, q in zip(images, labels, strict=True)
        ]
    return torch.stack(rows)


def prefers_vectorised(target: Target) -> bool:
    """Whether one call for all groups is faster than a loop over them, and its memory affordable."""
    return target.flat.size <= _FEW_PARAMETERS


def match(
    target: Target,
    wanted: Mapping[int, Tensor],
    pairs: Sequence[Pair],
    initial: Distilled,
    names: Sequence[str],
    settings: Settings,
    advance: Advance = lambda amount: None,
    *,
    sign: float,
) -> Distilled:
    """Distil B groups from ``wanted[t] (B, P)``, the real gradients at θ_t; ``advance`` counts synthetic samples.

    ``sign`` is −1 for reverse matching and +1 for forward.
    """
    hard = settings.labels == "hard"
    distance = DISTANCES[settings.distance](target.flat)
    kept = Distilled(initial.images.clone(), initial.targets.clone())
    learned = [initial.images.clone().requires_grad_()]
    if not hard:
        learned.append(initial.targets.clone().requires_grad_())
    limits = [_LARGEST * tensor.detach().flatten(1).abs().amax(1).clamp(min=1) for tensor in learned]
    optimizer = _optimizer(learned, settings)
    together = max(1, _TOGETHER // settings.ipc) if prefers_vectorised(target) else 1
    chunks = torch.arange(len(names)).split(together)
    for step, (real_at, synset_at) in enumerate(pairs):
        theta, fixed = target.at(synset_at)
        images = _augmented(learned[0], settings, step)
        targets = kept.targets if hard else learned[1]
        distances, slopes = [], [torch.zeros_like(tensor) for tensor in learned]
        for rows in chunks:
            gradients = synset_gradients(target, theta, fixed, images[rows], targets[rows], hard=hard)
            apart = distance(gradients, sign * wanted[real_at][rows].to(target.device))
            found = torch.autograd.grad(apart.sum(), learned, retain_graph=images is not learned[0])
            distances.append(apart.detach())
            for slope, part in zip(slopes, found, strict=True):
                slope[rows] = part[rows]
        for tensor, slope in zip(learned, slopes, strict=True):
            tensor.grad = slope.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
        _keep(kept, learned, limits, [torch.cat(distances), *slopes], names, step, len(pairs))
        advance(initial.images.shape[:2].numel())
    return kept


def _optimizer(learned: list[Tensor], settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(learned, lr=settings.lr, momentum=0.5)
    return torch.optim.Adam(learned, lr=settings.lr)


def _augmented(images: Tensor, settings: Settings, step: int) -> Tensor:
    """One flip and shift a step, the same for all groups, so that it does not depend on which are together."""
    if settings.augment == "none":
        return images
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    together = images.reshape(1, -1, *images.shape[-2:])
    return augmentation.augment(together, settings.augment, generator).reshape(images.shape)


def _keep(
    kept: Distilled,
    learned: list[Tensor],
    limits: list[Tensor],
    checked: list[Tensor],
    names: Sequence[str],
    step: int,
    steps: int,
) -> None:
    """Take over the step of every group it went well for; stop the others where they were."""
    with torch.no_grad():
        if len(learned) > 1:
            learned[1] -= (learned[1].sum(-1, keepdim=True) - 1) / learned[1].shape[-1]  # Σq̃ = 1
        finite = torch.stack([tensor.reshape(len(names), -1).isfinite().all(1) for tensor in checked]).all(0)
        sizes = [tensor.flatten(1).abs().amax(1) for tensor in learned]
        small = torch.stack([size <= limit for size, limit in zip(sizes, limits, strict=True)]).all(0)
        for row in (~(finite & small)).nonzero()[:, 0].tolist():
            why = "its images exploded" if finite[row] else "its gradient became NaN or infinite"
            kept.stopped.setdefault(
                row,
                f"group {names[row]} stopped at step {step + 1} of {steps}: {why}; lower the matching lr.",
            )
        going = torch.tensor([row not in kept.stopped for row in range(len(names))], device=learned[0].device)
        kept.images[going] = learned[0].detach()[going]
        if len(learned) > 1:
            kept.targets[going] = learned[1].detach()[going]
