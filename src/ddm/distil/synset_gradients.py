"""The gradients ∇L(θ; S_κ) of the loss on each group's synthetic samples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap

from ddm.training.target import Target

_FEW_PARAMETERS = 500_000
"""Up to this many parameters, one vectorised call for all groups beats a loop over them on a CPU
(bench/bench_vectorised.py)."""


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
    """∇_θ L(θ; S_κ) ``(B, P)`` of images ``(B, ipc, ...)`` with targets ``(B, ipc, L)``, differentiable in both.

    hard:       use the largest target as a plain label
    vectorised: compute all groups in one call; None chooses by the size of the network
    """

    def loss(at: Tensor, x: Tensor, q: Tensor) -> Tensor:
        return target.loss(target.flat(at, fixed, x), q)

    labels = targets.argmax(-1) if hard else targets
    if prefers_vectorised(target) if vectorised is None else vectorised:
        with contextlib.suppress(RuntimeError):  # vmap cannot run some networks, for example data-dependent code
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
    """True if one vectorised call for all groups is faster than a loop and its memory is affordable."""
    return target.flat.size <= _FEW_PARAMETERS
