"""Gradients of single samples, and their mean with every sample's gradient clipped to a maximum norm C.

∇̄L(θ; D) = mean_i min(1, C/‖g_i‖) g_i,    g_i = ∇L(θ; x_i, y_i).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.gradients import output_gradients
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.training.target import Target

_NORM_SAMPLES = 512
"""Maximum number of training samples from whose gradient norms the limit C is computed."""

_BATCH = 128
"""Maximum number of samples whose gradients are in memory at once."""


def sample_gradients(target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, y: Tensor) -> Tensor:
    """g_i ``(b, P)``: the gradient of each sample's loss at θ, for inputs ``x (b, ...)`` with labels ``y``."""
    x, y = x.to(target.device), y.to(target.device)
    with torch.no_grad():
        logits = target.flat(theta, fixed, x)
    with torch.enable_grad():
        logits.requires_grad_()
        (slopes,) = torch.autograd.grad(target.loss.each(logits, y).sum(), logits)
    return output_gradients(target, theta, fixed, x, slopes[:, None])[:, 0]


def clipped_gradient(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, y: Tensor, limit: float
) -> Tensor:
    """The mean ``(P,)`` of the samples' gradients, each scaled down to the norm ``limit`` where it is larger."""
    total = torch.zeros_like(theta)
    for inputs, labels in zip(x.split(_BATCH), y.split(_BATCH), strict=True):
        rows = sample_gradients(target, theta, fixed, inputs, labels)
        total += (rows * (limit / rows.norm(dim=1).clamp(min=limit))[:, None]).sum(0)
    return total / len(x)


def limits(target: Target, samples: Samples, checkpoints: Sequence[int], quantile: float, seed: int = 0) -> list[float]:
    """C_t for each checkpoint: a quantile of the gradient norms of some training samples."""
    x, y = samples.subsample(_NORM_SAMPLES, seed).batch()
    found = []
    for t in checkpoints:
        theta, fixed = target.at(t)
        parts = zip(x.split(_BATCH), y.split(_BATCH), strict=True)
        norms = torch.cat([sample_gradients(target, theta, fixed, *part).norm(dim=1) for part in parts])
        found.append(max(float(norms.quantile(quantile)), torch.finfo(norms.dtype).tiny))
    return found


def clipped_gradients(
    target: Target,
    samples: Samples,
    members: Sequence[np.ndarray],
    checkpoints: Sequence[int],
    quantile: float,
    seed: int = 0,
    advance: Advance = lambda amount: None,
) -> Tensor:
    """∇̄L(θ_t; D_κ) ``(B, T, P)`` of B groups at T checkpoints, clipped at each checkpoint's own limit."""
    gradients = torch.empty(len(members), len(checkpoints), target.flat.size, dtype=target.theta.dtype)
    allowed = limits(target, samples, checkpoints, quantile, seed)
    for column, (t, limit) in enumerate(zip(checkpoints, allowed, strict=True)):
        theta, fixed = target.at(t)
        for row, rows in enumerate(members):
            gradients[row, column] = clipped_gradient(target, theta, fixed, *samples.batch(rows), limit)
            advance(len(rows))
    return gradients
