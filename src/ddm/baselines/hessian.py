"""The Hessian H of the mean training loss at θ_τ: on which samples, its extreme eigenvalues, and how to damp it.

A network that was not trained to a minimum has a Hessian with negative eigenvalues, and the inverse that influence
functions ask for only makes sense of ``H + λI`` with λ above the most negative one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ddm.baselines.protocol import Question

_SAMPLES = 256
_FEWEST = 32
_WORK = 2**28
"""H is looked at on up to _SAMPLES samples, fewer where samples × parameters would exceed _WORK."""

_STEPS = 30
_MARGIN = 1.5
"""Lanczos finds eigenvalues from within, so the most negative one is a little lower than what it finds."""

_CONDITION = 1e3

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Curvature:
    """H on some training samples.

    x, y:    those samples
    damping: λ
    highest: the largest eigenvalue of H
    """

    x: Tensor
    y: Tensor
    damping: float
    highest: float


def curvature(question: Question, limit: int = _SAMPLES) -> Curvature:
    """H on up to ``limit`` training samples, with λ the largest of three.

    the weight decay:    its share of the training objective's Hessian
    1.5 × the most negative eigenvalue of H: so that H + λI is positive definite
    a thousandth of the largest: so that H + λI can be inverted in single precision
    """
    target = question.target
    limit = min(limit, max(_FEWEST, _WORK // target.flat.size))
    generator = torch.Generator().manual_seed(question.seed)
    rows = torch.randperm(len(question.train), generator=generator)[:limit].sort().values
    x, y = (tensor.to(target.device) for tensor in question.train.batch(rows))
    lowest, highest = extremes(hessian_product(question, x, y), target.theta, generator)
    decay = target.recipe.weight_decay if target.recipe is not None else 0.0
    return Curvature(x, y, max(decay, -_MARGIN * lowest, highest / _CONDITION), highest)


def hessian_product(question: Question, x: Tensor, y: Tensor) -> Product:
    """v ↦ Hv for vectors ``(P,)``, with H on inputs ``x`` with labels ``y``."""
    target = question.target
    theta = target.theta.detach().requires_grad_()
    value = target.loss(target.flat(theta, target.fixed, x), y)
    (slope,) = torch.autograd.grad(value, theta, create_graph=True)
    if not slope.requires_grad:  # a loss that is linear in θ
        return torch.zeros_like

    def product(vector: Tensor) -> Tensor:
        return torch.autograd.grad(slope, theta, vector, retain_graph=True)[0]

    return product


def extremes(product: Product, like: Tensor, generator: torch.Generator, steps: int = _STEPS) -> tuple[float, float]:
    """The lowest and the highest eigenvalue of a symmetric matrix of the size of ``like (P,)``, by Lanczos."""
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    basis = [vector / vector.norm()]
    projected = torch.zeros(steps, steps, dtype=torch.float64)
    for k in range(min(steps, len(like))):
        vector = product(basis[k])
        for i, other in enumerate(basis):
            projected[i, k] = float(other @ vector)
        for _ in range(2):  # again, or rounding brings the first directions back
            for other in basis:
                vector = vector - (other @ vector) * other
        length = vector.norm()
        if length <= 1e-5 * projected.abs().max() or k + 1 == steps:
            break
        basis.append(vector / length)
    values = torch.linalg.eigvalsh(projected[: k + 1, : k + 1], UPLO="U")
    return float(values[0]), float(values[-1])
