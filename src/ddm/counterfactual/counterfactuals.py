"""Counterfactuals θ_p: the target after fine-tuning on the synset of the removed groups, ℱ(S_κ : p(κ) = 0).

    θ ← θ − Σ_κ m_κ (α_κ / T) ∇L(θ; S_κ),    T times, from θ_τ.

m_κ is 1 for a removed group, 0 for a group that stays, and a multiple that depends on w for a group of weight w
(``ddm.counterfactual.displaced``). With T = 1 every model is θ_τ plus multiples of K fixed directions, which are
computed once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.compute.once import Once
from ddm.counterfactual.displaced import Models, multiples, sums
from ddm.curvature.gradients import jacobian, together
from ddm.data.inputs import tensor_of
from ddm.distil.synset import Synset
from ddm.distil.synset_gradients import synset_gradients
from ddm.errors import InputError
from ddm.training.target import Target


class Counterfactuals(Models):
    """The models that would have been trained without some groups, or with other weights of groups."""

    def __init__(self, target: Target, synset: Synset) -> None:
        self.target, self.synset, self.own = target, synset, synset.own
        self._images = synset.images.to(target.theta)
        self._targets = synset.targets.to(target.theta)
        self._step_sizes = synset.step_sizes.to(target.theta)
        self._all_directions: Once[Tensor] = Once()

    def __len__(self) -> int:
        """K, the number of groups."""
        return len(self.synset)

    @property
    def usable(self) -> np.ndarray:
        """True for groups that can be removed ``(K,)``, because their matching was not stopped."""
        usable: np.ndarray = self.synset.usable.numpy()
        return usable

    @property
    def has_directions(self) -> bool:
        """True if the fine-tuning has one step."""
        return self.synset.steps == 1

    def directions(self, groups: Tensor | None) -> Tensor:
        """−α_κ ∇L(θ_τ; S_κ) ``(B, P)`` of some groups, or of all. Cached if all fit the memory budget."""
        if self.synset.steps > 1:
            raise InputError("a fine-tuning of several steps has no single direction: leave out fast.")
        if groups is not None and not self._fits_budget:
            return self._steps(groups, self.target.theta)
        every = self._all_directions.get(lambda: self._steps(torch.arange(len(self)), self.target.theta))
        return every if groups is None else every[groups]

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` for M perturbations ``removed (M, K)``."""
        if self.synset.steps > 1:
            return torch.stack([self._finetune(row) for row in multiples(self._check(removed), self.own)])
        return super().parameters(removed)

    def _finetune(self, amounts: Tensor) -> Tensor:
        """θ_p ``(P,)`` after T steps on the synsets of the groups, for the multiples ``(K,)`` of one perturbation."""
        groups = amounts.nonzero()[:, 0]
        theta = self.target.theta
        for _ in range(self.synset.steps):
            parts = [sums(amounts[None, some], self._steps(some, theta)) for some in groups.split(self._batch_size)]
            theta = theta + torch.cat(parts).sum(0) / self.synset.steps
        return theta

    @torch.no_grad()  # whoever asks first: with gradients torch rounds differently
    def _steps(self, groups: Tensor, theta: Tensor) -> Tensor:
        """−α_κ ∇L(θ; S_κ) ``(B, P)`` of some groups at θ."""
        if not len(groups):
            return theta.new_zeros(0, len(theta))
        if self.synset.shared:
            return self._shared_steps(groups, theta)
        gradients = synset_gradients(
            self.target,
            theta,
            self.target.fixed,
            tensor_of(self._images)[groups],
            self._targets[groups],
            hard=self.synset.hard,
            vectorised=False,  # no second derivative is needed, and torch.func takes seconds to import
        )
        return -self._step_sizes[groups][:, None] * gradients.detach()

    def _shared_steps(self, groups: Tensor, theta: Tensor) -> Tensor:
        """The steps if all groups share their images: Σ_b J(x̃_b)ᵀ r_κb with r = α (q̃ − p) / B, Σ_l r = 0."""
        target, images = self.target, self._images[0]
        if len(groups) <= self._targets.shape[2]:
            return self._shared_one_by_one(groups, theta)
        total = torch.zeros(len(groups), target.flat.size).to(theta)
        for part in torch.arange(len(images)).split(together(target, self._targets.shape[2])):
            rows = jacobian(target, theta, target.fixed, images[part])
            with torch.no_grad():
                residuals = self._residuals(groups, target.flat(theta, target.fixed, images[part]), part)
            total += torch.einsum("kbl,blp->kp", residuals, rows)
        return total

    def _shared_one_by_one(self, groups: Tensor, theta: Tensor) -> Tensor:
        """The shared steps, with one backward pass per group. For few groups this is less work than computing J."""
        target, images = self.target, self._images[0]
        theta = theta.detach().requires_grad_()
        with torch.enable_grad():
            logits = target.flat(theta, target.fixed, images)
        residuals = self._residuals(groups, logits.detach(), torch.arange(len(images)))
        return torch.stack([torch.autograd.grad(logits, theta, part, retain_graph=True)[0] for part in residuals])

    def _residuals(self, groups: Tensor, logits: Tensor, images: Tensor) -> Tensor:
        """r_κb ``(B, b, L)`` on some images with logits ``(b, L)``."""
        sizes = self._step_sizes[groups][:, None, None] / self._targets.shape[1]
        return sizes * (self._targets[groups][:, images] - self.target.task.mean(logits))

    def check_usable(self, removed: np.ndarray) -> None:
        """Refuse to remove a group whose matching was stopped."""
        for index in np.flatnonzero(removed):
            name = self.synset.names[index]
            if name in self.synset.stopped:
                raise InputError(f"group {name} cannot be removed: {self.synset.stopped[name]}")
