"""Counterfactuals θ_p: the target after fine-tuning on the synset of the removed groups, ℱ(S_κ : p(κ) = 0).

    θ ← θ − Σ_{κ removed} (α_κ / T) ∇L(θ; S_κ),    T times, from θ_τ.

With T = 1 every model is θ_τ plus a sum of K fixed directions, which are computed once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from ddm.errors import InputError
from ddm.matching.gradient import synset_gradients
from ddm.progress import bar
from ddm.synset import Synset
from ddm.target import Target

_BUDGET = 2**30
"""Bytes that kept directions, or the models of one chunk, may take."""

_FEW_INPUTS, _FEW_PARAMETERS = 4, 250_000
"""Up to which one vectorised forward pass of all models beats a loop over them on a CPU (bench/bench_vectorised.py)."""


class Counterfactuals:
    """The models that would have been trained without some groups, for a target and its synset."""

    def __init__(self, target: Target, synset: Synset) -> None:
        self.target, self.synset = target, synset
        self._images = synset.images.to(target.theta)
        self._targets = synset.targets.to(target.theta)
        self._lengths = synset.lengths.to(target.theta)
        self._directions: Tensor | None = None

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` for M perturbations: ``removed (M, K)`` is True where a group is taken away."""
        removed = self._checked(removed)
        if self.synset.steps > 1:
            return torch.stack([self._finetuned(row) for row in removed])
        if self._fits(len(self.synset)):
            directions = self._kept_directions()
        else:
            used = removed.any(0)
            removed, directions = removed[:, used], self._steps_of(used.nonzero()[:, 0])
        if (removed.sum(1) == 1).all():
            return self.target.theta + directions[removed.int().argmax(1)]
        return self.target.theta + removed.to(directions) @ directions

    def network(self, removed: np.ndarray | Tensor) -> nn.Module:
        """The model without the groups of ``removed (K,)``, as a plain network in evaluation mode."""
        theta = self.parameters(torch.as_tensor(removed)[None])[0]
        return self.target.flat.module(theta, self.target.fixed)

    def outputs(self, removed: np.ndarray | Tensor, x: Tensor) -> Tensor:
        """Logits ``(M, n, L)`` of inputs ``x (n, ...)`` under M perturbations ``removed (M, K)``."""
        return torch.stack(list(self.each(removed, x)))

    def each(self, removed: np.ndarray | Tensor, x: Tensor) -> Iterator[Tensor]:
        """Logits ``(n, L)`` of each perturbed model in turn, so that no more than a few are held at once."""
        removed, x = self._checked(removed), x.to(self.target.device)
        size = max(1, _BUDGET // (self.target.flat.size * self.target.theta.element_size()))
        with bar("counterfactual models", len(removed)) as advance, torch.no_grad():
            for part in removed.split(size):
                for logits in self._forward(self.parameters(part), x):
                    yield logits
                    advance(1)

    def _forward(self, models: Tensor, x: Tensor) -> Iterable[Tensor]:
        flat, fixed = self.target.flat, self.target.fixed
        if len(x) <= _FEW_INPUTS and flat.size <= _FEW_PARAMETERS:
            with contextlib.suppress(RuntimeError):  # networks that cannot be vectorised
                logits: Tensor = vmap(lambda theta: flat(theta, fixed, x))(models)
                return logits
        return (torch.cat([flat(theta, fixed, part) for part in x.split(512)]) for theta in models)

    def _kept_directions(self) -> Tensor:
        """−α_κ ∇L(θ_τ; S_κ) ``(K, P)`` of all groups, computed once."""
        if self._directions is None:
            self._directions = self._steps_of(torch.arange(len(self.synset)))
        return self._directions

    def _finetuned(self, removed: Tensor) -> Tensor:
        """θ_p ``(P,)`` after T steps on the synsets of the removed groups ``(K,)``."""
        groups = removed.nonzero()[:, 0]
        theta = self.target.theta
        for _ in range(self.synset.steps):
            theta = theta + self._steps_of(groups, theta).sum(0) / self.synset.steps
        return theta

    def _steps_of(self, groups: Tensor, theta: Tensor | None = None) -> Tensor:
        """−α_κ ∇L(θ; S_κ) ``(B, P)`` of some groups at θ (default θ_τ)."""
        target = self.target
        gradients = synset_gradients(
            target,
            target.theta if theta is None else theta,
            target.fixed,
            self._images[groups],
            self._targets[groups],
            hard=self.synset.hard,
            vectorised=False,  # nothing is differentiated twice here, and torch.func takes seconds to import
        )
        return -self._lengths[groups][:, None] * gradients.detach()

    def _fits(self, models: int) -> bool:
        return models * self.target.flat.size * self.target.theta.element_size() <= _BUDGET

    def _checked(self, removed: np.ndarray | Tensor) -> Tensor:
        removed = torch.as_tensor(removed).to("cpu", torch.bool)
        if removed.dim() != 2 or removed.shape[1] != len(self.synset):
            raise InputError(f"perturbations of shape {tuple(removed.shape)} do not fit {len(self.synset)} groups.")
        return removed

    def check_usable(self, removed: np.ndarray) -> None:
        """Refuse to remove a group whose matching was stopped."""
        for index in np.flatnonzero(removed):
            name = self.synset.names[index]
            if name in self.synset.stopped:
                raise InputError(f"group {name} cannot be removed: {self.synset.stopped[name]}")
