"""The Hessian H of the mean training loss at θ_τ: its sample, its extreme eigenvalues and its damping λ.

A network that was not trained to a minimum has negative eigenvalues. Influence functions invert ``H + λI``, which is
only meaningful if λ exceeds the magnitude of the most negative one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ddm.baselines.protocol import ScoreRequest
from ddm.data.inputs import X

_SAMPLES = 256
_FEWEST_SAMPLES = 32
_WORK = 2**28
"""H is computed on up to _SAMPLES samples, and on fewer where samples × parameters would exceed _WORK."""

_STEPS = 30
_MARGIN = 1.5
"""Lanczos approaches eigenvalues from inside the spectrum, so the true minimum is a little lower than its estimate."""

_CONDITION = 1e3

HessianProduct = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Curvature:
    """H on a subset of the training samples.

    x, y:    packed inputs and labels of the subset
    damping: λ
    highest: the largest eigenvalue of H
    """

    x: Tensor
    y: Tensor
    damping: float
    highest: float


def estimate_curvature(request: ScoreRequest, limit: int = _SAMPLES) -> Curvature:
    """H on up to ``limit`` training samples. λ is the largest of three values:

    the weight decay, which belongs to the Hessian of the training objective
    1.5 × the magnitude of the most negative eigenvalue, so that H + λI is positive definite
    a thousandth of the largest eigenvalue, so that H + λI can be inverted in single precision
    """
    target = request.target
    limit = min(limit, max(_FEWEST_SAMPLES, _WORK // target.flat.size))
    generator = torch.Generator().manual_seed(request.seed)
    rows = torch.randperm(len(request.train), generator=generator)[:limit].sort().values
    x, y = request.train.batch(rows)
    x, y = x.to(target.device), y.to(target.device)
    lowest, highest = extreme_eigenvalues(hessian_product(request, x, y), target.theta, generator)
    decay = target.recipe.weight_decay if target.recipe is not None else 0.0
    return Curvature(request.packing.pack(x), y, max(decay, -_MARGIN * lowest, highest / _CONDITION), highest)


def hessian_product(request: ScoreRequest, x: X, y: Tensor) -> HessianProduct:
    """The function v ↦ Hv for vectors ``(P,)``, with H on inputs ``x`` and labels ``y``."""
    target = request.target
    theta = target.theta.detach().requires_grad_()
    loss = target.loss(target.flat(theta, target.fixed, x), y)
    (gradient,) = torch.autograd.grad(loss, theta, create_graph=True)
    if not gradient.requires_grad:  # the loss is linear in θ
        return torch.zeros_like

    def product(vector: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, theta, vector, retain_graph=True)[0]

    return product


def extreme_eigenvalues(
    product: HessianProduct, like: Tensor, generator: torch.Generator, steps: int = _STEPS
) -> tuple[float, float]:
    """The lowest and the highest eigenvalue of a symmetric matrix, by Lanczos; ``like (P,)`` gives its size."""
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    basis = [vector / vector.norm()]
    projected = torch.zeros(steps, steps, dtype=torch.float64)
    for k in range(min(steps, len(like))):
        vector = product(basis[k])
        for i, other in enumerate(basis):
            projected[i, k] = float(other @ vector)
        for _ in range(2):  # orthogonalise twice, because rounding errors bring earlier directions back
            for other in basis:
                vector = vector - (other @ vector) * other
        length = vector.norm()
        if length <= 1e-5 * projected.abs().max() or k + 1 == steps:
            break
        basis.append(vector / length)
    values = torch.linalg.eigvalsh(projected[: k + 1, : k + 1], UPLO="U")
    return float(values[0]), float(values[-1])
