"""The network and its loss along one direction of the parameters.

Both come from a central difference of the logits, so they need forward passes only and work for any network.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ddm.data.inputs import X
from ddm.data.losses import SampleLoss
from ddm.training.target import Target

_WIDTH = 3e-4
"""Length of the step to either side in the central difference, as a fraction of ‖θ‖."""


def logits_along(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits f(x) ``(n, L)`` and their derivative J(x)d ``(n, L)`` along ``d (P,)``."""
    width = _WIDTH * float(theta.norm() or 1.0) / max(float(direction.norm()), torch.finfo(theta.dtype).tiny)
    with torch.no_grad():
        ahead = target.flat(theta + width * direction, fixed, x)
        behind = target.flat(theta - width * direction, fixed, x)
    return (ahead + behind) / 2, (ahead - behind) / (2 * width)


def curvature_along(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, y: Tensor, direction: Tensor
) -> Tensor:
    """dᵀGd, with G the Gauss–Newton matrix of the mean loss of these samples at θ; at least 0."""
    logits, change = logits_along(target, theta, fixed, x, direction)
    return second_derivative(target.loss, logits, change, y)


def second_derivative(loss: SampleLoss, logits: Tensor, change: Tensor, y: Tensor) -> Tensor:
    """Second derivative at ε = 0 of ``ε ↦ L(f + ε Jd, y)``, clamped to at least 0."""
    with torch.enable_grad():
        step = torch.zeros((), dtype=logits.dtype, device=logits.device, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(logits + step * change, y), step, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like(slope)
        (second,) = torch.autograd.grad(slope, step)
    return second.clamp(min=0)
