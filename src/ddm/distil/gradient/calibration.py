"""How far to go along the synset's direction: the one-dimensional response.

Cosine matching gives a direction and loses its length. Let ``d_κ = −∇L(θ_τ; S_κ)`` be the direction of the
fine-tuning, ``u_κ`` its unit vector, and ``ḡ_κ = n_κ/(n − n_κ) mean_t ∇L(θ_t; D_κ)`` the pull that the mean loss of the
others lacks. While the group is absent the other data push back with the curvature G, so the displacement settles where
``½ c² uᵀ(G + λI)u − c uᵀḡ`` is least:

    c_κ = u_κᵀḡ_κ / (u_κᵀ G u_κ + λ),    λ = 1 / Σ learning rates.

``uᵀGu`` is the generalised Gauss–Newton curvature of the training loss, pooled over checkpoints. It needs only forward
passes (a difference of the logits along u), so it works for any network.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.gradients import along, loss_gradient
from ddm.data.samples import Samples
from ddm.training.target import Loss, Target

_SAMPLES = 128
_FEWEST = 16
_WORK = 2**28
"""Curvature is looked at on up to _SAMPLES samples, fewer where samples × parameters would exceed _WORK."""

CHECKPOINTS = 3


def calibrated(
    target: Target,
    samples: Samples,
    directions: Tensor,
    wanted: Tensor,
    damping: float,
    advance: Advance = lambda amount: None,
) -> Tensor:
    """α_κ ``(B,)`` such that θ_τ + α_κ d_κ is the calibrated step, for directions and ḡ ``(B, P)``."""
    norms = directions.norm(dim=1)
    units = directions / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None]
    reach = (units * wanted).sum(1) / (curvature(target, samples, units, advance) + damping)
    return torch.where(norms > 0, reach / norms, 0.0).nan_to_num(0.0, 0.0, 0.0)


def curvature(target: Target, samples: Samples, units: Tensor, advance: Advance = lambda amount: None) -> Tensor:
    """uᵀGu ``(B,)`` for unit vectors ``(B, P)``, on some training samples at a few checkpoints."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(samples), generator=generator)[: looks(target)]
    x, y = (tensor.to(target.device) for tensor in samples.batch(rows))
    checkpoints = np.unique(np.linspace(0, len(target.trajectory) - 1, CHECKPOINTS).round().astype(int))
    total = torch.zeros(len(units), dtype=units.dtype, device=units.device)
    for t in checkpoints:
        theta, fixed = target.at(int(t))
        for row, unit in enumerate(units):
            logits, change = along(target, theta, fixed, x, unit)
            total[row] += bend(target.loss, logits, change, y) / len(checkpoints)
            advance(len(x))
    return total


def looks(target: Target) -> int:
    """Samples on which curvature is looked at."""
    return min(_SAMPLES, max(_FEWEST, _WORK // target.flat.size))


def bend(loss: Loss, logits: Tensor, change: Tensor, y: Tensor) -> Tensor:
    """Second derivative at 0 of ``ε ↦ L(f + ε Ju, y)``, with Ju the change of the logits along u; at least 0."""
    with torch.enable_grad():
        step = torch.zeros((), dtype=logits.dtype, device=logits.device, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(logits + step * change, y), step, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like(slope)
        (bend,) = torch.autograd.grad(slope, step)
    return bend.clamp(min=0)


def damping(target: Target, samples: Samples) -> float:
    """λ = 1 / Σ learning rates of the training, momentum counted; estimated where the trajectory does not say."""
    length = target.trajectory.lengths[-1]
    if np.isfinite(length) and length > 0:
        return 1.0 / length
    return 1.0 / _estimated_length(target, samples)


def dampings(target: Target, samples: Samples) -> Tensor:
    """Λ ``(P,)``: λ, or one for each parameter where the optimiser scaled steps one by one, plus the weight decay."""
    reach = target.trajectory.reach
    if reach is None:
        known = torch.full_like(target.theta, damping(target, samples))
    else:
        known = 1 / target.flat.vector({name: tensor.to(target.theta) for name, tensor in reach.items()})
        # A parameter that no step updated stays where it is. Infinite damping would say so, but times 0 it is NaN.
        known = known.clamp(max=torch.finfo(known.dtype).max ** 0.5)
    return known + (target.recipe.weight_decay if target.recipe is not None else 0.0)


def _estimated_length(target: Target, samples: Samples) -> float:
    """Σ learning rates that explain the steps θ_t − θ_{t+1} by the loss gradients at both ends, by least squares."""
    rows = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:512]
    x, y = samples.batch(rows)
    total = 0.0
    theta, fixed = target.at(0)
    gradient = loss_gradient(target, theta, fixed, x, y)
    for t in range(1, len(target.trajectory)):
        following, fixed = target.at(t)
        next_gradient = loss_gradient(target, following, fixed, x, y)
        mean = (gradient + next_gradient) / 2
        total += max(float((theta - following) @ mean / mean.square().sum()), 0.0)
        theta, gradient = following, next_gradient
    return total or 1.0
