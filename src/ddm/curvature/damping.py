"""The damping Λ of a training: it limits how far a parameter moves in a training of finite length.

Gradient descent with learning rates η_1 … η_T moves a parameter without curvature by Σ η_t times its gradient. So the
response of such a parameter is ḡ/λ with λ = 1/Σ η_t. Momentum repeats every step, Adam scales each parameter's steps,
and weight decay pulls back. ``ddm.training.optimizers`` computes these effects, and the trajectory stores the sums.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.curvature.gradients import loss_gradient
from ddm.data.samples import Samples
from ddm.training.optimizers import OPTIMIZERS
from ddm.training.target import Target

_SAMPLES = 512
"""Number of samples whose gradients estimate the learning rates if the trajectory does not store them."""


def parameter_damping(target: Target, samples: Samples) -> Tensor:
    """Λ ``(P,)``: the same for all parameters unless the optimizer scales each one's steps; includes weight decay."""
    rates = target.trajectory.parameter_rates
    if rates is None:
        damping = torch.full_like(target.theta, mean_damping(target, samples))
    else:
        damping = 1 / target.flat.vector({name: tensor.to(target.theta) for name, tensor in rates.items()})
        # A parameter that no step updated has infinite damping. The clamp avoids NaN from infinity times 0.
        damping = damping.clamp(max=torch.finfo(damping.dtype).max ** 0.5)
    recipe = target.recipe
    return damping if recipe is None else OPTIMIZERS[recipe.optimizer].with_decay(damping, recipe)


def mean_damping(target: Target, samples: Samples) -> float:
    """λ = 1 / Σ learning rates, including momentum. The sum is estimated if the trajectory does not store it."""
    total = target.trajectory.cumulative_rates[-1]
    if np.isfinite(total) and total > 0:
        return 1.0 / total
    return 1.0 / _estimate_total_rate(target, samples)


def _estimate_total_rate(target: Target, samples: Samples) -> float:
    """Σ learning rates, each fitted by least squares: θ_t − θ_{t+1} ≈ rate × mean loss gradient of both ends."""
    rows = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:_SAMPLES]
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
