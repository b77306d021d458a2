"""Gradients of groups along the trajectory: ∇L(θ_t; D_κ), the mean over the group, ``(P,)`` each.

They are fixed once the target is trained, so each is computed once per (checkpoint, group) and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.datasets.samples import Samples
from ddm.progress import Advance
from ddm.target import Target


def loss_gradient(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: Tensor, y: Tensor, batch_size: int = 64
) -> Tensor:
    """∇_θ of the mean loss of inputs ``x (b, ...)`` with labels ``y`` at θ: ``(P,)``."""
    theta = theta.detach().requires_grad_()
    total = torch.zeros_like(theta)
    for inputs, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        value = target.loss(target.flat(theta, fixed, inputs.to(target.device)), labels.to(target.device))
        total += torch.autograd.grad(value, theta)[0] * (len(inputs) / len(x))
    return total.detach()


def group_gradients(
    target: Target,
    samples: Samples,
    members: Sequence[np.ndarray],
    checkpoints: Sequence[int],
    advance: Advance = lambda amount: None,
) -> Tensor:
    """∇L(θ_t; D_κ) ``(B, T, P)`` for B groups of samples, given by position, at T checkpoints."""
    gradients = torch.empty(len(members), len(checkpoints), target.flat.size, dtype=target.theta.dtype)
    for column, t in enumerate(checkpoints):
        theta, fixed = target.at(t)
        for row, rows in enumerate(members):
            gradients[row, column] = loss_gradient(target, theta, fixed, *samples.batch(rows))
            advance(len(rows))
    return gradients
