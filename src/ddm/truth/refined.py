"""Refined models: the models of a datamodel, with their outputs corrected by retrained networks.

For a removal p, with residuals r_j of R retrainings and gains g_j(p) of the posterior (``ddm.truth.posterior``):

    refined logits = f + s·(f_p − f) + Σ_j g_j(p)·r_j,    r_j = (what retraining j changed) − s·Σ_{κ∈S_j} (f_κ − f)

with f the target's logits, f_p the unrefined ones of p, and f_κ those without group κ alone. The gains are the same for
every input, so a refined model is a weighted sum of networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from ddm.compute.once import Once
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.inputs import X, equal
from ddm.networks.state import State
from ddm.networks.weighted_sum import WeightedSum
from ddm.truth.evidence import Evidence

_KEPT = 2**27
"""Maximum bytes of the logits of a question that are remembered."""

_TOGETHER = 2**22
"""Maximum logits per stack."""

_NO_WEIGHT = 1e-9
"""Networks with a smaller weight than this are left out of a weighted sum."""


@dataclass(frozen=True, eq=False)
class _Question:
    """Cached results for the inputs of the last question.

    x, fast:   the inputs ``(n, ...)``, copied because the caller may change them, and how their logits are computed
    logits:    logits ``(1 + needed, n, L)`` of the target and without each needed group; None if they are too large
    residuals: ``(R, n, L)``
    """

    x: X
    fast: bool
    logits: Tensor | None
    residuals: Tensor

    def asks(self, x: X, fast: bool) -> bool:
        """True if this is the question about ``x``."""
        return fast == self.fast and equal(x, self.x)


class Residuals:
    """Computes residuals: the measured change of each retraining minus the predicted one. Caches the last question.

    groups:   the unrefined models without some groups
    evidence: the retrained networks
    """

    def __init__(self, groups: Models, evidence: Evidence) -> None:
        self.groups, self.evidence = groups, evidence
        self.posterior = evidence.posterior
        self.scale = evidence.spread.scale
        used = np.asarray(self.posterior.removed.any(0))
        # Most questions are about all groups: if most are needed anyway, the rest costs little.
        self.needed = np.arange(len(used)) if 2 * used.sum() >= len(used) else np.flatnonzero(used)
        self._outputs: Once[int] = Once()  # L, found by the first question
        self._last: _Question | None = None

    def of(self, x: X, fast: bool = False) -> Tensor:
        """Residuals r ``(R, n, L)`` of the logits of inputs ``x (n, ...)``."""
        return self.ask(x, fast).residuals

    def ask(self, x: X, fast: bool = False) -> _Question:
        """Residuals and logits of inputs ``x (n, ...)``. They depend on nothing that was asked before."""
        last = self._last  # read once: other threads may ask too
        if last is not None and last.asks(x, fast):
            return last
        logits = torch.cat(list(self.groups.stacks(self.singles, x, fast=fast))) if self._can_keep(x) else None
        found = self.changes(x) - self.scale * self.predicted(x, fast, logits)
        self._last = asked = _Question(x.clone(), fast, logits, found)
        return asked

    def _can_keep(self, x: X) -> bool:
        """True if the logits of inputs ``x`` without each needed group fit in memory."""
        values = (1 + len(self.needed)) * len(x) * self._outputs.get(lambda: self.groups.target.outputs(x[:1]).shape[1])
        return values * self.groups.target.theta.element_size() <= _KEPT

    def changes(self, x: X) -> Tensor:
        """The measured change of the logits by each retraining ``(R, n, L)``."""
        return self.evidence.changes(self.groups.target, x)

    def predicted(self, x: X, fast: bool = False, logits: Tensor | None = None) -> Tensor:
        """The predicted change of the logits by each retraining ``(R, n, L)``: the sum over its groups.

        logits: logits ``(1 + needed, n, L)`` of the target and without each needed group, if they are at hand
        """
        amounts = torch.as_tensor(self.posterior.removed[:, self.needed]).to(self.groups.target.theta)
        if logits is not None:
            return torch.einsum("rk,knl->rnl", amounts, logits[1:] - logits[0])
        total, base, start = None, None, 0
        for stack in self.groups.stacks(self.singles, x, fast=fast):
            if base is None or total is None:
                base, stack = stack[0], stack[1:]
                total = base.new_zeros(len(amounts), *base.shape)
            total += torch.einsum("rk,knl->rnl", amounts[:, start : start + len(stack)], stack - base)
            start += len(stack)
        assert total is not None
        return total

    @property
    def singles(self) -> np.ndarray:
        """The removal of each needed group alone ``(needed, K)``."""
        return designs.leave_one_out(self.posterior.removed.shape[1])[self.needed]

    def deviations(self, x: X, fast: bool = False) -> tuple[Tensor, np.ndarray]:
        """Leave-one-out errors of the predicted changes ``(R, n, L)``, and their variances ``(R,)``."""
        left, variances = self.posterior.left_out()
        residuals = self.of(x, fast)
        return torch.einsum("rs,snl->rnl", torch.as_tensor(left).to(residuals), residuals), variances


class RefinedModels(Models):
    """Models whose outputs are corrected by evidence.

    A removal of a whole class of several groups is not corrected: retrainings without some of its groups say little
    about it.

    prior:    the unrefined models without some groups
    evidence: the retrained networks
    parents:  the class of each group ``(K,)``; None if groups cut across classes
    order:    the batch order that is asked about; 0 is the target's own run, ``GENERAL`` the model in general
    """

    def __init__(self, prior: Models, evidence: Evidence, parents: np.ndarray | None = None, order: int = 0) -> None:
        self.prior, self.order = prior, order
        self.residuals = Residuals(prior, evidence)
        self.target, self.own = prior.target, prior.own
        classes = np.empty((0, len(prior)), dtype=bool) if parents is None else np.unique(parents)[:, None] == parents
        self._classes = classes[classes.sum(1) > 1]
        self._last_weights: _Weights | None = None

    def __len__(self) -> int:
        """K, the number of groups."""
        return len(self.prior)

    @property
    def usable(self) -> np.ndarray:
        """True for groups that can be removed ``(K,)``."""
        return self.prior.usable

    @property
    def has_directions(self) -> bool:
        """True if every unrefined model is θ_τ plus multiples of fixed directions."""
        return self.prior.has_directions

    def check_usable(self, removed: np.ndarray) -> None:
        """Refuse to remove a group that cannot be removed; ``removed (K,)``."""
        self.prior.check_usable(removed)

    def directions(self, groups: Tensor | None) -> Tensor:
        """d_κ ``(B, P)`` of the unrefined models."""
        return self.prior.directions(groups)

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` of the unrefined models: evidence corrects outputs, not parameters."""
        return self.prior.parameters(removed)

    def corrected(self, removed: np.ndarray | Tensor) -> np.ndarray:
        """True for perturbations ``removed (M, K)`` that retrainings correct ``(M,)``."""
        gone = np.asarray(removed) == 1
        some_left: np.ndarray = (~gone[:, None] & self._classes).any(2).all(1)
        return some_left

    def gains(self, removed: np.ndarray | Tensor) -> np.ndarray:
        """The weights ``(M, R)`` of the residuals, for perturbations ``removed (M, K)``."""
        return self._weigh(removed).gains

    def scales(self, removed: np.ndarray | Tensor) -> np.ndarray:
        """By how much the unrefined changes are multiplied ``(M,)``."""
        return self._weigh(removed).scales

    def variances(self, removed: np.ndarray | Tensor) -> np.ndarray:
        """The variance ``(M,)`` of what refined outputs still miss, in units of the posterior; NaN if not corrected."""
        return self._weigh(removed).variances

    def _weigh(self, removed: np.ndarray | Tensor) -> _Weights:
        """The weights of perturbations. Those asked about last are remembered, because most questions ask alike."""
        rows, last = np.asarray(removed), self._last_weights
        if last is not None and last.removed.shape == rows.shape and (last.removed == rows).all():
            return last
        corrected, posterior = self.corrected(rows), self.residuals.posterior
        self._last_weights = found = _Weights(
            rows.copy(),
            posterior.gains(rows, self.order) * corrected[:, None],
            np.where(corrected, self.residuals.scale, 1.0),
            np.where(corrected, posterior.variances(rows, self.order), np.nan),
        )
        return found

    def stacks(self, removed: np.ndarray | Tensor, x: X, *, fast: bool = False) -> Iterator[Tensor]:
        """Logits ``(m, n, L)`` of the target and then of each refined model, in batches of a few models."""
        rows, known = self._check(removed), self.residuals.ask(x, fast)
        gains, scales = torch.as_tensor(self.gains(rows)), torch.as_tensor(self.scales(rows))
        gains = torch.cat([gains.new_zeros(1, gains.shape[1]), gains])  # the target stays as it is
        scales = torch.cat([scales.new_ones(1), scales])
        base, start = None, 0
        for stack in self._unrefined(rows, x, fast, known.logits):
            base = stack[0] if base is None else base
            now = slice(start, start + len(stack))
            yield base + corrected_changes(stack - base, scales[now], gains[now], known.residuals)
            start += len(stack)

    def _unrefined(self, removed: Tensor, x: X, fast: bool, logits: Tensor | None) -> Iterator[Tensor]:
        """The unrefined stacks. Models whose ``logits`` are known from the residuals are not evaluated again."""
        if logits is None:
            yield from self.prior.stacks(removed, x, fast=fast)
            return
        singles = {row.tobytes(): place for place, row in enumerate(self.residuals.singles.astype(float), start=1)}
        places = [singles.get(row.tobytes()) for row in removed.double().numpy() + 0.0]
        missing = torch.tensor([place is None for place in places], dtype=torch.bool)
        stacks = self.prior.stacks(removed[missing], x, fast=fast) if missing.any() else iter(())
        others = islice((model for stack in stacks for model in stack), 1, None)  # without the target
        yield logits[:1]
        each = max(1, _TOGETHER // max(1, logits[0].numel()))
        for start in range(0, len(places), each):
            now = places[start : start + each]
            yield torch.stack([next(others) if place is None else logits[place] for place in now])

    def network(self, removed: np.ndarray | Tensor) -> nn.Module:
        """The refined model of one perturbation ``removed (K,)``: a weighted sum of networks, in evaluation mode."""
        asked = np.asarray(torch.as_tensor(removed))[None]
        gains = self.gains(asked)[0]
        parts = [*self._unrefined_parts(asked, gains), *self._evidence_parts(gains)]
        kept = [part for part in parts if abs(part.weight) > _NO_WEIGHT]
        networks = [self.target.flat.module(part.theta.to(self.target.device), part.fixed) for part in kept]
        return WeightedSum(networks, [part.weight for part in kept]).to(self.target.device)

    def _unrefined_parts(self, asked: np.ndarray, gains: np.ndarray) -> list[_Part]:
        """The target, the unrefined model without ``asked (1, K)``, and those without each needed group alone."""
        target, residuals, scale = self.target, self.residuals, float(self.scales(asked)[0])
        sums = residuals.scale * (gains @ residuals.posterior.removed.astype(float))
        weights, singles = -sums[residuals.needed], residuals.singles
        same = (singles == asked).all(1)
        weights[same] += scale
        parts = [_Part(1 - scale + sums.sum(), target.theta, target.fixed)]
        if not same.any():
            parts.append(_Part(scale, self.prior.parameters(asked)[0], target.fixed))
        used = np.abs(weights) > _NO_WEIGHT
        if used.any():
            models = self.prior.parameters(singles[used])
            parts += [_Part(w, theta, target.fixed) for w, theta in zip(weights[used], models, strict=True)]
        return parts

    def _evidence_parts(self, gains: np.ndarray) -> list[_Part]:
        """The retrained networks. Those that were trained on all groups are subtracted."""
        evidence = self.residuals.evidence
        weights = np.zeros(len(evidence.orders))
        weights[evidence.trials] += gains
        np.subtract.at(weights, evidence.bases(), gains)
        return [
            _Part(weight, evidence.theta[i], {name: tensor[i] for name, tensor in evidence.fixed.items()})
            for i, weight in enumerate(weights)
        ]


def corrected_changes(changes: Tensor, scales: Tensor, gains: Tensor, residuals: Tensor) -> Tensor:
    """Predicted changes ``(m, n, L)``, times ``scales (m,)``, plus ``gains (m, R)`` of the residuals ``(R, n, L)``."""
    return scales.to(changes)[:, None, None] * changes + torch.einsum("mr,rnl->mnl", gains.to(residuals), residuals)


@dataclass(frozen=True, eq=False)
class _Weights:
    """Gains ``(M, R)``, scales ``(M,)`` and variances ``(M,)`` of perturbations ``removed (M, K)``."""

    removed: np.ndarray
    gains: np.ndarray
    scales: np.ndarray
    variances: np.ndarray


@dataclass(frozen=True)
class _Part:
    """One network of a weighted sum, and its weight."""

    weight: float
    theta: Tensor
    fixed: State
