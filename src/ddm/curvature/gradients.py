"""Gradients along the trajectory: of the loss on groups of samples, and of the logits of single inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import vjp, vmap

from ddm.compute.progress import Advance
from ddm.data.inputs import X, at_once
from ddm.data.samples import Samples
from ddm.training.target import Target

_SAMPLES = 2**16
"""Maximum inputs of one vectorised call."""

_TOGETHER = 2**24
"""Maximum floats in the gradients of one vectorised call."""


def loss_gradient(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, y: Tensor, batch_size: int = 64
) -> Tensor:
    """∇_θ of the mean loss of inputs ``x (b, ...)`` with labels ``y`` at θ: ``(P,)``."""
    theta = theta.detach().requires_grad_()
    total = torch.zeros_like(theta)
    batch_size = at_once(batch_size, x.nbytes // max(1, len(x)))
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
    """∇L(θ_t; D_κ) ``(B, T, P)``: the mean gradient of each of B groups at each of T checkpoints.

    members: the positions of each group's samples
    advance: counts backward passes of samples
    """
    gradients = torch.empty(len(members), len(checkpoints), target.flat.size, dtype=target.theta.dtype)
    for column, t in enumerate(checkpoints):
        theta, fixed = target.at(t)
        for row, rows in enumerate(members):
            gradients[row, column] = loss_gradient(target, theta, fixed, *samples.batch(rows))
            advance(len(rows))
    return gradients


def output_gradients(target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X, cotangents: Tensor) -> Tensor:
    """J(x_i)ᵀa_ij ``(n, c, P)`` with J = ∂f/∂θ, for inputs ``x (n, ...)`` and c vectors ``a (n, c, L)`` each."""

    def one(inputs: X, vectors: Tensor) -> Tensor:
        pull = vjp(lambda at: target.flat(at, fixed, inputs[None])[0], theta)[1]
        rows: Tensor = vmap(lambda vector: pull(vector)[0])(vectors)
        return rows

    size = min(together(target, cotangents.shape[1]), at_once(_SAMPLES, x.nbytes // max(1, len(x))))
    if size > 1:
        with contextlib.suppress(RuntimeError):  # vmap cannot run some networks
            parts = zip(x.split(size), cotangents.split(size), strict=True)
            return torch.cat([vmap(one)(inputs, vectors).detach() for inputs, vectors in parts])
    rows = theta.new_empty(*cotangents.shape[:2], target.flat.size)
    for inputs, vectors, into in zip(x, cotangents, rows, strict=True):
        _one_by_one(target, theta, fixed, inputs, vectors, into)
    return rows


def together(target: Target, each: int) -> int:
    """Maximum inputs per vectorised call, with ``each`` gradients per input."""
    return max(1, _TOGETHER // (each * target.flat.size))


def _one_by_one(
    target: Target, theta: Tensor, fixed: Mapping[str, Tensor], inputs: X, vectors: Tensor, into: Tensor
) -> None:
    """Jᵀa ``(c, P)`` of one input without ``vmap``. Differentiating by tensors is faster than by the flat vector θ."""
    trained = {name: part.detach().requires_grad_() for name, part in target.flat.unflatten(theta).items()}
    with torch.enable_grad():
        outputs = target.flat.apply(trained, fixed, inputs[None])[0]
    for row, vector in zip(into, vectors, strict=True):
        found = torch.autograd.grad(outputs, list(trained.values()), vector, retain_graph=True, materialize_grads=True)
        torch.cat([part.flatten() for part in found], out=row)


def jacobian(target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X) -> Tensor:
    """J(x_i) ``(n, L, P)`` of the logits of inputs ``(n, ...)``."""
    if len(x) == 1:
        with contextlib.suppress(RuntimeError):  # vmap cannot run some networks
            return _jacobian_of_one(target, theta, fixed, x)
    with torch.no_grad():
        classes = target.flat(theta, fixed, x[:1]).shape[1]
    return output_gradients(target, theta, fixed, x, torch.eye(classes).to(theta).expand(len(x), -1, -1))


def _jacobian_of_one(target: Target, theta: Tensor, fixed: Mapping[str, Tensor], x: X) -> Tensor:
    """J(x) ``(1, L, P)`` of one input ``(1, ...)``: one backward pass, or one per logit if J is large."""
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        logits = target.flat(theta, fixed, x)[0]
    each = torch.eye(len(logits)).to(logits)
    if len(logits) * target.flat.size > _TOGETHER:
        return output_gradients(target, theta.detach(), fixed, x, each[None])
    return torch.autograd.grad(logits, theta, each, is_grads_batched=True)[0][None]
