"""The response Δ_κ: where the target's parameters move when a group is absent and the other data push back.

    Δ_κ = (Ḡ − Ḡ_κ + cΛ)⁻¹ ḡ_κ,    ḡ_κ = (n_κ/n) Σ_t ω_t ∘ ∇L(θ_t; D_κ)

Ḡ is the curvature of the training loss, Ḡ_κ the part of it that the group itself contributes, Λ the damping of the
training (``ddm.curvature.step_weights``), c the multiple of it that suits the solve best
(``ddm.curvature.damping``), and ḡ_κ the pull that the group no longer exerts. Curvature and pull are pooled over the
trajectory. ω_t is a checkpoint's share of the training, one for each parameter if the optimizer scales each parameter's
steps.

A group that keeps the weight w keeps the part w of its curvature. Along Δ_κ its share of the curvature is

    u_κ = 1 − d_κᵀḡ_κ / Δ_κᵀḡ_κ,    d_κ = (Ḡ + cΛ)⁻¹ ḡ_κ.

*Regression.* The slopes of a squared error have no bound, so early gradients can dwarf all later ones, although the
rest of the training makes up for them. There the training is cut into S segments of equal length, each with a pull of
its own:

    (SΛ + Ḡ − Ḡ_κ) d_s = SΛ d_{s−1} + (ḡ_κ,s − (n_κ/n) ḡ_s)/Σ_{t∈s} ω_t,    Δ_κ = d_S,

which forgets early pulls in the directions in which the data are stiff. ḡ_s is the pull of all samples. A training
without the group takes means over the other samples, so it lacks only what differs from the mean of all; in a
classifier ḡ is small beside ḡ_κ, and is left out.

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


_SEGMENTS = 4
"""Segments of the training in regression. On five trainings of made and real data, four were as good as more."""

_ALL_SAMPLES, _TOGETHER = 4096, 128
"""Maximum samples from which the pull of all samples is computed, and maximum samples of each part of it."""


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

    @cached_property
    def segments(self) -> list[int] | None:
        """For each checkpoint the number of its segment; None for a task that needs no segments."""
        count = min(_SEGMENTS, len(self.checkpoints))
        if self.target.task.kind != "regression" or count == 1:
            return None
        shares = np.full(len(self.checkpoints), 1.0)
        shares[[0, -1]] = 0.5  # the trapezoid rule gives the ends half a weight
        middles = shares.cumsum() - shares / 2
        found: list[int] = np.minimum(middles / shares.sum() * count, count - 1).astype(int).tolist()
        return found

    def set_damping(self, scale: float) -> None:
        """Solve with this multiple c of the damping from now on."""
        self.curvature.set_damping(scale if self.segments is None else scale * (max(self.segments) + 1))

    def used_rows(self, rows: np.ndarray) -> np.ndarray:
        """The samples from which a group's gradient is computed: all at ``rows``, or a random subset if many."""
        if len(rows) <= self.settings.samples:
            return rows
        generator = np.random.default_rng([self.settings.seed, len(rows), int(rows[0])])
        return np.sort(generator.choice(rows, self.settings.samples, replace=False))

    def pulls(self, members: Sequence[np.ndarray], advance: Advance = lambda amount: None) -> Tensor:
        """ḡ_κ ``(B, P)`` of groups given by the positions of their samples; ``advance`` counts backward passes.

        With segments, what the pull of each segment has beyond the mean of all samples, ``(B, S, P)``.
        """
        groups = [GroupSamples(self.used_rows(rows), len(rows) / len(self.samples)) for rows in members]
        pulls = self._pulls(groups, advance)
        if self.segments is None:
            return pulls
        shares = torch.tensor([group.share for group in groups]).to(pulls)
        return pulls - shares[:, None, None] * self._pull_of_all

    def _pulls(self, groups: Sequence[GroupSamples], advance: Advance = lambda amount: None) -> Tensor:
        where, limits = self.engine, self._clip_limits
        return group_pulls(
            self.target, self.samples, self.checkpoints, self.weights, groups, where, advance, limits, self.segments
        )

    @cached_property
    def _pull_of_all(self) -> Tensor:
        """ḡ_s ``(1, S, P)`` of all samples."""
        rows = np.random.default_rng(self.settings.seed).permutation(len(self.samples))[:_ALL_SAMPLES]
        parts = np.array_split(rows, -(-len(rows) // _TOGETHER))  # samples of a small group take no turns
        return self._pulls([GroupSamples(np.sort(part), len(part) / len(rows)) for part in parts]).sum(0, keepdim=True)

    @cached_property
    def _clip_limits(self) -> list[float] | None:
        """Maximum norm of a sample's gradient at each checkpoint; None without clipping."""
        if self.settings.clip is None:
            return None
        return limits(self.target, self.samples, self.checkpoints, self.settings.clip, self.settings.seed)

    def choose_damping(self, pulls: Tensor) -> Damping:
        """Fix the damping of all solves: that of the settings, or the best one for the ``pulls`` of some groups."""
        if self.settings.damping is None:
            pulls = pulls if self.segments is None else pulls.sum(1)
            chosen = choose_damping(self.curvature, pulls, self.set_damping)
            if chosen.scale > _ROUGH:
                warnings.warn(
                    "the curvature is estimated from too few rows for this network, so effects of groups are rough: "
                    "use more (curvature=…), or refine before you rely on them.",
                    stacklevel=6,
                )
            return chosen
        self.set_damping(self.settings.damping)
        return Damping(self.settings.damping)

    def without_own(self, pulls: Tensor, members: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Δ_κ ``(B, P)`` of groups with these ``pulls``, and their own shares u_κ ``(B,)``.

        members: the samples whose curvature is left out, for each group
        """
        if self.segments is None:
            responses, whole = self.curvature.solve_without(pulls, members)
        else:
            responses, whole = self._through_segments(pulls, members)
            pulls = pulls.sum(1)
        before, after = ((moved * pulls).sum(1) for moved in (whole, responses))
        own = torch.where(after > 0, 1 - before / after, 0.0).clamp(0, _MAX_OWN_SHARE)
        if self.segments is not None:  # the pulls of segments do not belong to one solve, which the guard compares with
            return responses, own
        missed = self.curvature.unseen_quadratic(whole) / before.clamp(min=torch.finfo(before.dtype).tiny)
        return responses * (_MOST_MISSED / missed).clamp(max=1.0)[:, None], own

    def _through_segments(self, pulls: Tensor, members: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """d_S ``(B, P)`` without and with the groups' own curvature, from the pulls ``(B, S, P)`` of S segments."""
        count, damping = pulls.shape[1], self.curvature.damping * self.curvature.scale
        decay = self.weights.damping(self.target) * self.weights.total(self.target) - 1
        kept = damping / (1 + decay / count)
        without = whole = torch.zeros_like(pulls[:, 0])
        for part, share in zip(pulls.unbind(1), self._segment_shares, strict=True):
            mean = part / share
            without = self.curvature.solve_without(kept * without + mean, members)[0]
            whole = self.curvature.solve(kept * whole + mean)
        return without, whole

    @cached_property
    def _segment_shares(self) -> Tensor:
        """Σ ω_t ``(S, P)`` over the checkpoints of each segment."""
        assert self.segments is not None
        shares = torch.zeros(max(self.segments) + 1, self.target.flat.size).to(self.target.theta)
        for position, segment in enumerate(self.segments):
            shares[segment] += self.weights.at(self.target, position).to(shares)
        return (shares / self.weights.total(self.target)).clamp(min=torch.finfo(shares.dtype).tiny)


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
