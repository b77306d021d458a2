"""Reconstruction of training images by gradient inversion (Geiping et al., 2020).

A synset's direction d_κ tells the gradient of its group, as far as it was matched. Images x̂ of the group are sought by

    min over x̂ of 1 − cos(Σ_t ω_t ∇L(θ_t; x̂, y), ĝ_κ) + μ TV(x̂)

with Adam on the signs of the gradient, its rate lowered thrice, within the range of pictures. The attacker knows the
labels, the checkpoints θ_t with their weights, and how many samples the group has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddm.matching.gradient import synset_gradients
from ddm.target import Target

_RATE, _VARIATION = 0.1, 1e-2
"""Adam's rate, and μ."""

_LOWERED = (3 / 8, 5 / 8, 7 / 8)
"""Where in the attack the rate falls to a tenth."""


def inverted(
    target: Target,
    checkpoints: Sequence[int],
    weights: Sequence[float],
    wanted: Tensor,
    labels: Tensor,
    shape: Sequence[int],
    within: tuple[Tensor, Tensor],
    steps: int,
    seed: int = 0,
) -> Tensor:
    """Images ``(B, m, *shape)`` whose gradients are most alike ĝ ``(B, P)``, with labels ``(B, m)``.

    within: the least and largest values of an input, ``(C, 1, 1)`` each
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(*labels.shape, *shape, generator=generator).to(target.theta)
    images = images.clamp(*within).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=_RATE)
    lowered = [round(part * steps) for part in _LOWERED]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, lowered, gamma=0.1)
    states = [target.at(t) for t in checkpoints]
    one_hot = torch.nn.functional.one_hot(labels, target.outputs(images[0].detach()).shape[1]).to(images)
    for _ in range(steps):
        total = torch.zeros_like(wanted)
        for (theta, fixed), weight in zip(states, weights, strict=True):
            total = total + weight * synset_gradients(target, theta, fixed, images, one_hot, hard=True)
        alike = torch.cosine_similarity(total, wanted, dim=1)
        (slope,) = torch.autograd.grad((1 - alike).sum() + _VARIATION * variation(images).sum(), images)
        images.grad = slope.nan_to_num().sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(*within)
    return images.detach()


def variation(images: Tensor) -> Tensor:
    """Total variation ``(B, m)``: the mean difference of neighbouring pixels, across and down."""
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(2)
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(2)
    return (across.sum(2) + down.sum(2)) / max(1, across.shape[2] + down.shape[2])
