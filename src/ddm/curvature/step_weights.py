"""How far the steps of a training move each parameter, and the damping that follows.

Around checkpoint t the optimizer moves a parameter by W_t times its gradient,

    W_t = Σ η / D_t,    D_t = √(mean D²) + its median over the parameters that had a gradient,

with the rates η and divisors D that the recorder saw (``ddm.training.optimizers``); D_t = 1 for SGD. The median keeps
D_t away from 0 for parameters that hardly ever have a gradient: a division by their √v̂ alone would let them dominate.

To first order, the training without group κ ends at θ_τ + d with

    (A + Σ_t W_t ∘ G_t) d = (n_κ/n) Σ_t W_t ∘ ∇L(θ_t; D_κ),    A = 1 + weight decay,

G_t the curvature at θ_t and ∘ the product of each row with its parameter's weight. Divided by W̄ = Σ_t W_t it reads

    (Λ + Σ_t ω_t ∘ G_t) d = ḡ_κ,    ω_t = W_t/W̄,    Λ = A/W̄:

Λ is the damping. For plain gradient descent it is λ = 1/Σ η, because a parameter without curvature moves by Σ η times
its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.curvature.gradients import loss_gradient
from ddm.data.samples import Samples
from ddm.networks.state import check_state
from ddm.training.steps import TensorSteps
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory

_SAMPLES = 512
"""Number of samples whose gradients estimate the learning rates if the trajectory does not store them."""

_EQUAL = 1e-6
"""Relative difference up to which the weights of two parameter tensors count as equal."""


class StepWeights:
    """The weights W_t of T checkpoints.

    target:      the target, with a trajectory
    checkpoints: numbers of the checkpoints
    samples:     training samples, used only if the trajectory does not store the learning rates
    """

    def __init__(self, target: Target, checkpoints: Sequence[int], samples: Samples) -> None:
        self.checkpoints = list(checkpoints)
        self._sizes = target.flat.sizes
        trajectory, names = target.trajectory, list(target.flat.shapes)
        self._scaled = any(steps is not None and steps.scaled for steps in trajectory.seen)
        recorded = _recorded_sums(trajectory, names)
        self._estimated = recorded is None
        sums = _estimated_sums(target, samples) if recorded is None else recorded
        self._rates = _around(sums["rate"], self.checkpoints)
        self._coupled = _around(sums["coupled"], self.checkpoints)
        self._decoupled = sums["decoupled"][-1]
        self._epsilon = sums["epsilon"][-1] / np.maximum(sums["count"][-1], 1)

    @property
    def uniform(self) -> Tensor | None:
        """ω ``(T,)`` if all parameters have the same, Σω = 1; otherwise None."""
        if self._scaled and not self._estimated:
            return None
        shares = self._rates / np.maximum(self._rates.sum(0), np.finfo(float).tiny)
        same = np.allclose(shares, shares[:, :1], rtol=_EQUAL, atol=_EQUAL)
        return torch.as_tensor(shares[:, 0] / shares[:, 0].sum()) if same else None

    def at(self, target: Target, position: int, t: int | None = None) -> Tensor:
        """W_t ``(P,)``, on the CPU, of the checkpoint at ``position``: number ``t`` of the target's trajectory."""
        t = self.checkpoints[position] if t is None else t
        return self._expand(self._rates[position], target) / self._divisor(target, t)

    def total(self, target: Target) -> Tensor:
        """W̄ ``(P,)``."""
        total = torch.zeros(target.flat.size, dtype=target.theta.dtype)
        for position in range(len(self.checkpoints)):
            total += self.at(target, position)
        return total.to(target.device)

    def damping(self, target: Target) -> Tensor:
        """Λ ``(P,)``."""
        decay = self._expand(self._decoupled, target)
        for position, t in enumerate(self.checkpoints):
            decay += self._expand(self._coupled[position], target) / self._divisor(target, t)
        damping = (1 + decay).to(target.device) / self.total(target)
        # A parameter that no step moved has infinite damping. The clamp avoids NaN from infinity times 0.
        return damping.clamp(max=torch.finfo(damping.dtype).max ** 0.5)

    def _divisor(self, target: Target, t: int) -> Tensor:
        """D_t ``(P,)``; 1 for an optimizer that does not scale each parameter."""
        moments = target.trajectory.moments_around(t) if self._scaled and not self._estimated else None
        if moments is None:
            return torch.ones((), dtype=target.theta.dtype)
        zeros = {name: torch.zeros(shape) for name, shape in target.flat.shapes.items()}
        moments = {name: moments.get(name, zero) for name, zero in zeros.items()}
        check_state(moments, target.flat.shapes, f"the second moments of checkpoint {t}")
        squares = target.flat.vector(moments).to(target.theta.dtype).clamp(min=0)
        roots = squares.sqrt() + self._expand(self._epsilon, target)
        # Most rows of an embedding may be unused: they say nothing of the others, and would make the median 0.
        used = roots[squares > 0]
        return roots + (used if len(used) else roots).median()

    def _expand(self, values: np.ndarray, target: Target) -> Tensor:
        """One value for each parameter ``(P,)`` from one for each tensor."""
        return torch.as_tensor(values).repeat_interleave(torch.tensor(self._sizes)).to(target.theta.dtype)


def mean_damping(target: Target, samples: Samples) -> float:
    """λ: the damping averaged over the parameters."""
    last = len(target.trajectory) - 1
    return float(StepWeights(target, range(last + 1), samples).damping(target).mean())


Sums = dict[str, np.ndarray]
"""Sums over all steps before each checkpoint, ``(τ + 1, S)`` for S parameter tensors, by their name in TensorSteps."""


def _recorded_sums(trajectory: Trajectory, names: Sequence[str]) -> Sums | None:
    """The sums that the recorder saw; None if it saw no optimizer that it knows."""
    seen = trajectory.seen[1:]
    if any(steps is None for steps in seen) or not np.isfinite(trajectory.cumulative_rates).all():
        return None
    none = TensorSteps()
    tensors = [[steps.tensors.get(name, none) for name in names] for steps in seen if steps is not None]
    fields = TensorSteps.__dataclass_fields__
    sums = {field: np.array([[getattr(one, field) for one in row] for row in tensors], dtype=float) for field in fields}
    return {field: np.concatenate([np.zeros((1, len(names))), values.cumsum(0)]) for field, values in sums.items()}


def _estimated_sums(target: Target, samples: Samples) -> Sums:
    """The same for a trajectory without recorded steps: one rate for all parameters, with the recipe's weight decay."""
    rates = np.array(target.trajectory.cumulative_rates)
    if not np.isfinite(rates).all() or not rates[-1] > 0:
        steps = np.array(target.trajectory.steps, dtype=float)
        rates = _estimate_total_rate(target, samples) * (steps - steps[0]) / max(steps[-1] - steps[0], 1.0)
    decay = 0.0 if target.recipe is None else target.recipe.weight_decay
    columns = rates[:, None].repeat(len(target.flat.sizes), 1)
    none = np.zeros_like(columns)
    return {"rate": columns, "coupled": decay * columns, "decoupled": none, "epsilon": none, "count": none}


def _around(cumulative: np.ndarray, checkpoints: Sequence[int]) -> np.ndarray:
    """The part of cumulative sums ``(τ + 1, S)`` that lies around each checkpoint ``(T, S)``, by the trapezoid rule."""
    chosen = cumulative[list(checkpoints)]
    if len(chosen) == 1:
        whole: np.ndarray = cumulative[-1:] - cumulative[:1]
        return whole
    gaps, none = np.diff(chosen, axis=0), np.zeros_like(chosen[:1])
    around: np.ndarray = (np.concatenate([gaps, none]) + np.concatenate([none, gaps])) / 2
    return around


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
