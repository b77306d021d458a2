"""The response Δ_κ: where the target's parameters move when a group is absent and the other data push back.

    Δ_κ = (Ḡ − Ḡ_κ + cΛ)⁻¹ ḡ_κ,    ḡ_κ = (n_κ/n) Σ_t ω_t ∘ ∇L(θ_t; D_κ)

Ḡ is the curvature of the training loss, Ḡ_κ the part of it that the group itself contributes, Λ the damping of the
training (``ddm.curvature.step_weights``), c the multiple of it that suits the solve best
(``ddm.curvature.damping``), and ḡ_κ the pull that the group no longer exerts. Curvature and pull are pooled over the
trajectory. ω_t is a checkpoint's share of the training, one for each parameter if the optimizer scales each parameter's
steps.

A group that keeps the weight w keeps the part w of its curvature. Along Δ_κ its share of the curvature is

    u_κ = 1 − d_κᵀḡ_κ / Δ_κᵀḡ_κ,    d_κ = (Ḡ + cΛ)⁻¹ ḡ_κ.

A response is shortened where rows that the solve has not seen show more than three times the curvature along d_κ that
the solve saw, d_κᵀḡ_κ = d_κᵀ(Ḡ + cΛ)d_κ.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature import pooled_curvature
from ddm.curvature.clipping import limits
from ddm.curvature.damping import Damping, choose_damping
from ddm.curvature.step_weights import StepWeights
from ddm.data.samples import Samples
from ddm.distil.checkpoints import real_checkpoints
from ddm.distil.response.pull import GroupSamples, group_pulls
from ddm.distil.settings import Settings
from ddm.training.statistics import updates_statistics, with_estimated_statistics
from ddm.training.target import Target

_MAX_OWN_SHARE = 0.9
"""Maximum share of the curvature that is attributed to the group itself where the group keeps some weight."""


_ROUGH = 30.0
"""Chosen damping above which a warning says that effects are rough: the rows see hardly any of the curvature."""

_MOST_MISSED = 3.0
"""Maximum curvature of unseen rows along a solution, as a multiple of the curvature that the solve saw. With rows that
are far too few, the solve moves into stiff directions that it has not seen. Such a response is shortened to this."""


class Responses:
    """The responses of groups of a target's training samples.

    settings:    checkpoints, samples per group, curvature rows, damping, memory and seed
    checkpoints: overrides those of the settings
    engine:      where pulls are computed
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        settings: Settings,
        checkpoints: Sequence[int] | None = None,
        engine: Engine = None,
    ) -> None:
        target.trajectory.check_complete()
        self.samples, self.settings, self.engine = samples, settings, engine
        tau = len(target.trajectory) - 1
        self.checkpoints = list(checkpoints or real_checkpoints(settings, tau, _first_checkpoint(target)))
        self.target = target = with_estimated_statistics(target, samples, _used_checkpoints(target, self.checkpoints))
        self.weights = StepWeights(target, self.checkpoints, samples)
        self.curvature = pooled_curvature(
            target,
            samples,
            self.checkpoints,
            self.weights,
            self.weights.damping(target),
            rows=settings.curvature,
            memory=settings.memory,
            seed=settings.seed,
        )

    def used_rows(self, rows: np.ndarray) -> np.ndarray:
        """The samples from which a group's gradient is computed: all at ``rows``, or a random subset if many."""
        if len(rows) <= self.settings.samples:
            return rows
        generator = np.random.default_rng([self.settings.seed, len(rows), int(rows[0])])
        return np.sort(generator.choice(rows, self.settings.samples, replace=False))

    def pulls(self, members: Sequence[np.ndarray], advance: Advance = lambda amount: None) -> Tensor:
        """ḡ_κ ``(B, P)`` of groups given by the positions of their samples; ``advance`` counts backward passes."""
        groups = [GroupSamples(self.used_rows(rows), len(rows) / len(self.samples)) for rows in members]
        return group_pulls(
            self.target, self.samples, self.checkpoints, self.weights, groups, self.engine, advance, self._clip_limits
        )

    @cached_property
    def _clip_limits(self) -> list[float] | None:
        """Maximum norm of a sample's gradient at each checkpoint; None without clipping."""
        if self.settings.clip is None:
            return None
        return limits(self.target, self.samples, self.checkpoints, self.settings.clip, self.settings.seed)

    def choose_damping(self, pulls: Tensor) -> Damping:
        """Fix the damping of all solves: that of the settings, or the best one for pulls ``(B, P)`` of some groups."""
        if self.settings.damping is None:
            chosen = choose_damping(self.curvature, pulls)
            if chosen.scale > _ROUGH:
                warnings.warn(
                    "the curvature is estimated from too few rows for this network, so effects of groups are rough: "
                    "use more (curvature=…), or refine before you rely on them.",
                    stacklevel=6,
                )
            return chosen
        self.curvature.set_damping(self.settings.damping)
        return Damping(self.settings.damping)

    def without_own(self, pulls: Tensor, members: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Δ_κ ``(B, P)`` of groups with these pulls ``(B, P)``, and their own shares u_κ ``(B,)``.

        members: the samples whose curvature is left out, for each group
        """
        responses, whole = self.curvature.solve_without(pulls, members)
        before, after = ((moved * pulls).sum(1) for moved in (whole, responses))
        own = torch.where(after > 0, 1 - before / after, 0.0).clamp(0, _MAX_OWN_SHARE)
        missed = self.curvature.unseen_quadratic(whole) / before.clamp(min=torch.finfo(before.dtype).tiny)
        return responses * (_MOST_MISSED / missed).clamp(max=1.0)[:, None], own


def _first_checkpoint(target: Target) -> int:
    """The first checkpoint to pool over: 0, or 1 if the training updated running statistics.

    The statistics recorded with θ_0 are constants that no training step used. With estimated ones, a network with
    BatchNorm is so stiff at θ_0 that the responses come out several times too short.
    """
    return int(updates_statistics(target))


def _used_checkpoints(target: Target, checkpoints: Sequence[int]) -> Sequence[int]:
    """The checkpoints at which gradients are computed: all if unknown learning rates are estimated from them."""
    known = np.isfinite(target.trajectory.cumulative_rates).all()
    return checkpoints if known else range(len(target.trajectory))
