"""Displaced models: θ_τ plus a multiple of one direction for each group.

``removed (M, K)`` says how much of each group a model lacks: 1 − w for a group of weight w. 1 (or True) removes the
group, 0 keeps it as it is, ½ halves its weight, and −1 doubles it. A mask is the special case of 0 and 1.

A group of weight w still resists the change with w times its own curvature. With u the group's own share of the
curvature along the direction, the model moves by this multiple of the displacement that the removal causes:

    (1 − w)(1 − u) / (1 − (1 − w)u)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from ddm.compute.progress import bar
from ddm.curvature.gradients import jacobian, together
from ddm.data.inputs import X, parts
from ddm.errors import InputError
from ddm.networks.flat import FlatNetwork
from ddm.networks.state import State
from ddm.training.target import Target

BUDGET = 2**30
"""Maximum bytes of cached directions, or of the models of one batch."""

_TOGETHER = 2**22
"""Maximum logits of linear models per batch."""

_FEW_INPUTS, _FEW_PARAMETERS = 4, 250_000
"""Up to these sizes one vectorised forward pass of all models beats a loop on a CPU (bench/bench_vectorised.py)."""


class Models:
    """The models θ_p = θ_τ + Σ_κ m_κ d_κ for K directions ``(K, P)``, with the multiples m of ``multiples``.

    own: u_κ ``(K,)``, the groups' own shares of the curvature; None counts as 0
    """

    def __init__(self, target: Target, directions: Tensor, own: Tensor | None = None) -> None:
        self.target, self.own = target, own
        self._directions = directions

    def __len__(self) -> int:
        """K, the number of groups."""
        return len(self.directions(None))

    def directions(self, groups: Tensor | None) -> Tensor:
        """d_κ ``(B, P)`` of some groups, or of all."""
        return self._directions if groups is None else self._directions[groups]

    @property
    def usable(self) -> np.ndarray:
        """True for groups that can be removed ``(K,)``."""
        return np.ones(len(self), dtype=bool)

    @property
    def has_directions(self) -> bool:
        """True if every model is θ_τ plus multiples of fixed directions, as ``fast`` needs it."""
        return True

    def check_usable(self, removed: np.ndarray) -> None:
        """Refuse to remove a group that cannot be removed; ``removed (K,)``."""

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` for M perturbations ``removed (M, K)``."""
        removed, theta = multiples(self._check(removed), self.own), self.target.theta
        if self._fits_budget:
            return theta + sums(removed, self.directions(None))
        models = theta.repeat(len(removed), 1)
        for groups in removed.any(0).nonzero()[:, 0].split(self._batch_size):
            models += sums(removed[:, groups], self.directions(groups))
        return models

    def network(self, removed: np.ndarray | Tensor) -> nn.Module:
        """The model of one perturbation ``removed (K,)``, as a plain network in evaluation mode."""
        theta = self.parameters(torch.as_tensor(removed)[None])[0]
        return self.target.flat.module(theta, self.target.fixed)

    def outputs(self, removed: np.ndarray | Tensor, x: X, *, fast: bool = False) -> Tensor:
        """Logits ``(M, n, L)`` of inputs ``x (n, ...)`` under M perturbations ``removed (M, K)``."""
        return torch.cat(list(self.stacks(removed, x, fast=fast)))[1:]

    def stacks(self, removed: np.ndarray | Tensor, x: X, *, fast: bool = False) -> Iterator[Tensor]:
        """Logits ``(m, n, L)`` of the target and then of each perturbed model, in batches of a few models.

        ``fast`` computes them from one Jacobian of the target instead of from M models: f + J Σ m_κ d_κ, which
        agrees to first order in the step.
        """
        removed, x = self._check(removed), x.to(self.target.device)
        return self._linear(removed, x) if fast else self._exact(removed, x)

    def _exact(self, removed: Tensor, x: X) -> Iterator[Tensor]:
        with bar("counterfactual models", 1 + len(removed)) as advance:
            models = [self.target.theta[None]]
            for part in removed.split(self._batch_size):
                # Not around the yield: whoever stops in the middle would be left without gradients.
                with torch.no_grad():
                    models.append(self.parameters(part))
                for logits in self._forward(models, x):
                    yield logits
                    advance(len(logits))
                models = []

    def _linear(self, removed: Tensor, x: X) -> Iterator[Tensor]:
        base, changes = self.target.outputs(x), self.changes(removed.any(0).nonzero()[:, 0], x)
        amounts = multiples(removed, self.own)[:, removed.any(0)].to(changes)
        yield base[None]
        for some in amounts.split(max(1, _TOGETHER // max(1, base.numel()))):
            yield base + torch.einsum("mk,knl->mnl", some, changes)

    def changes(self, groups: Tensor, x: X) -> Tensor:
        """J(x) d_κ ``(B, n, L)``: how removing each group changes the logits, to first order."""
        inputs = x.split(together(self.target, self.target.outputs(x[:1]).shape[1])) if len(x) > 1 else [x]
        return torch.cat([self._changes(self.directions(some), inputs) for some in groups.split(self._batch_size)])

    def _changes(self, directions: Tensor, inputs: Sequence[X]) -> Tensor:
        """J(x) d ``(B, n, L)`` of directions ``(B, P)``, for inputs ``x (n, ...)`` in parts."""
        target = self.target
        rows = (jacobian(target, target.theta, target.fixed, part) for part in inputs)
        return torch.cat([torch.einsum("nlp,kp->knl", part, directions) for part in rows], 1)

    def _forward(self, models: Sequence[Tensor], x: X) -> Iterable[Tensor]:
        """Logits ``(m, n, L)`` of models ``(m, P)`` in batches: all models in one call, or one after another."""
        flat, fixed = self.target.flat, self.target.fixed
        if _is_small(flat, x):
            with contextlib.suppress(RuntimeError), torch.no_grad():  # vmap cannot run some networks
                whole = torch.cat(list(models)) if len(models) > 1 else models[0]
                return [vmap(lambda theta: flat(theta, fixed, x))(whole)]
        each = (theta for some in models for theta in some)
        return (_forward_one(flat, theta, fixed, x)[None] for theta in each)

    @property
    def _batch_size(self) -> int:
        """Number of models, or of directions, that fit the memory budget."""
        return max(1, BUDGET // (self.target.flat.size * self.target.theta.element_size()))

    @property
    def _fits_budget(self) -> bool:
        """True if the directions of all groups fit the memory budget, so that they are computed once and cached."""
        return len(self) <= self._batch_size

    def _check(self, removed: np.ndarray | Tensor) -> Tensor:
        removed = torch.as_tensor(removed).cpu()
        if removed.dim() != 2 or removed.shape[1] != len(self):
            raise InputError(f"perturbations of shape {tuple(removed.shape)} do not fit {len(self)} groups.")
        if not removed.isfinite().all():
            raise InputError("perturbations hold NaN or infinite values: give a mask, or 1 − weight for each group.")
        return removed


def forward_models(flat: FlatNetwork, theta: Tensor, fixed: State, x: X) -> Tensor:
    """Logits ``(m, n, L)`` of inputs ``(n, ...)`` for m networks with parameters ``(m, P)`` and ``fixed (m, ...)``."""
    x = x.to(theta.device)
    with torch.no_grad():
        if _is_small(flat, x):
            with contextlib.suppress(RuntimeError):  # vmap cannot run some networks
                return vmap(lambda one, rest: flat(one, rest, x))(theta, fixed)
        rests = ({name: tensor[i] for name, tensor in fixed.items()} for i in range(len(theta)))
        return torch.stack([_forward_one(flat, one, rest, x) for one, rest in zip(theta, rests, strict=True)])


def _is_small(flat: FlatNetwork, x: X) -> bool:
    """True if all networks run faster in one vectorised pass than one after another."""
    return len(x) <= _FEW_INPUTS and flat.size <= _FEW_PARAMETERS


def _forward_one(flat: FlatNetwork, theta: Tensor, fixed: Mapping[str, Tensor], x: X) -> Tensor:
    with torch.no_grad():
        return torch.cat([flat(theta, fixed, part) for part in parts(x, 512)])


def multiples(removed: Tensor, own: Tensor | None) -> Tensor:
    """m ``(M, K)``, how many times its direction each group moves a model, for ``removed (M, K)``.

    0 and 1 stay exactly 0 and 1, so a mask has the same models whatever the groups' own shares ``own (K,)`` are.
    """
    if own is None or removed.dtype == torch.bool:
        return removed
    own = own.cpu().double()
    return removed * (1 - own) / (1 - removed * own)


def sums(removed: Tensor, directions: Tensor) -> Tensor:
    """Σ_κ removed_κ d_κ ``(M, P)`` for ``removed (M, B)`` and directions ``(B, P)``."""
    if (removed.count_nonzero(1) == 1).all() and (removed.sum(1) == 1).all():  # one whole group each: nothing to add
        chosen = removed.int().argmax(1)
        in_order = torch.equal(chosen, torch.arange(len(directions)))
        return directions if in_order else directions[chosen]
    return removed.to(directions) @ directions
