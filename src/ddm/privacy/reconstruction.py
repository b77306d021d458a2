"""Reconstruction of training images by gradient inversion (Geiping et al., 2020).

As far as the matching succeeded, a synset's direction d_κ reveals its group's gradient ĝ_κ. The attack searches for
images x̂ of the group by

    min over x̂ of 1 − cos(Σ_t ω_t ∇L(θ_t; x̂, y), ĝ_κ) + μ TV(x̂)

with Adam on the sign of the gradient, three learning-rate decays, and pixels clamped to their valid range. The attacker
knows the labels, the checkpoints θ_t and their weights ω_t, and the size of the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddm.distil.synset_gradients import synset_gradients
from ddm.training.target import Target

_LEARNING_RATE, _VARIATION_WEIGHT = 0.1, 1e-2
"""Adam's learning rate, and μ."""

_DECAYS = (3 / 8, 5 / 8, 7 / 8)
"""Fractions of the attack after which the learning rate is divided by ten."""


def invert_gradients(
    target: Target,
    checkpoints: Sequence[int],
    weights: Sequence[float],
    gradients: Tensor,
    labels: Tensor,
    shape: Sequence[int],
    within: tuple[Tensor, Tensor],
    steps: int,
    seed: int = 0,
) -> Tensor:
    """Images ``(B, m, *shape)`` with labels ``(B, m)`` whose gradients best match ``gradients`` ĝ ``(B, P)``.

    within: the lowest and highest values of an input, ``(C, 1, 1)`` each
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(*labels.shape, *shape, generator=generator).to(target.theta)
    images = images.clamp(*within).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=_LEARNING_RATE)
    milestones = [round(fraction * steps) for fraction in _DECAYS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    states = [target.at(t) for t in checkpoints]
    one_hot = torch.nn.functional.one_hot(labels, target.outputs(images[0].detach()).shape[1]).to(images)
    for _ in range(steps):
        total = torch.zeros_like(gradients)
        for (theta, fixed), weight in zip(states, weights, strict=True):
            total = total + weight * synset_gradients(target, theta, fixed, images, one_hot, hard=True)
        similarity = torch.cosine_similarity(total, gradients, dim=1)
        (slope,) = torch.autograd.grad(
            (1 - similarity).sum() + _VARIATION_WEIGHT * total_variation(images).sum(), images
        )
        images.grad = slope.nan_to_num().sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(*within)
    return images.detach()


def total_variation(images: Tensor) -> Tensor:
    """Total variation ``(B, m)``: the mean absolute difference of horizontal and vertical neighbours."""
    horizontal = (images[..., 1:] - images[..., :-1]).abs().flatten(2)
    vertical = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(2)
    return (horizontal.sum(2) + vertical.sum(2)) / max(1, horizontal.shape[2] + vertical.shape[2])
