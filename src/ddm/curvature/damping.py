"""Chooses the damping by curvature that the solve has not seen.

M rows sample few of the directions in which a large network is stiff. In the others the solve sees only the damping,
and with the damping Λ of the training it moves much too far. So the solve uses a multiple of it:

    d_κ = (Ḡ + cΛ)⁻¹ ḡ_κ.

Rows that the solve has not seen, with curvature Ḡ', say two things about it. To first order, a step along d_κ lowers
the loss of the other data by at most half of the gain

    gain(c) = Σ_κ (d_κᵀḡ_κ)² / d_κᵀ(Ḡ' + Λ)d_κ.

A direction that is stiff without the solve knowing it lowers the gain. But the gain does not depend on the lengths of
the d_κ. Their length shows in the curvature that the solve missed,

    missed(c) = median_κ d_κᵀ(Ḡ' + Λ)d_κ / d_κᵀḡ_κ,

which is 1 for an exact solve. The least c is chosen whose gain is near the largest and that missed at most half as
much again as it saw. For an optimizer that scales each parameter the matrix is not symmetric, and the gain is only an
approximation of the decrease.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddm.compute.validation import is_finite
from ddm.curvature.protocol import Curvature, Trial

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The multiples c that can be tried. With less damping than the training has, no solve comes closer to Ḡ' + Λ."""

_FLAT = 0.01
"""Relative difference of gains that counts as none. Where rows are many, the gain is flat."""

_MOST_MISSED = 1.5
"""Maximum of missed(c). Around it the predicted effects have their true size (docs/method.md)."""

_NEARLY_EXACT = 1.2
"""With c = 1 and at most this missed(c), the solve is nearly that of the unseen rows, and no other c is tried."""

_TOGETHER, _FEW_PULLS = 5, 4
"""Number of multiples that are tried at once if every solve recomputes its rows, and maximum pulls then."""


@dataclass(frozen=True)
class Damping:
    """The multiple c of the training's damping that solves use; gain and missed curvature of each that was tried."""

    scale: float = 1.0
    gains: dict[float, float] = field(default_factory=dict)
    missed: dict[float, float] = field(default_factory=dict)


def choose_damping(
    curvature: Curvature, pulls: Tensor, set_damping: Callable[[float], object] | None = None
) -> Damping:
    """Set the curvature's damping to the multiple that suits pulls ``(B, P)`` of some groups best.

    The search climbs from c = 1, the damping of the training, and stops where the gain falls and little curvature is
    missed, because each multiple costs a factorisation. Between two multiples it interpolates over log c.

    set_damping: sets the chosen multiple (default: that of the curvature)
    """
    set_damping = set_damping or curvature.set_damping
    pulls = _comparable(pulls, _FEW_PULLS if curvature.cost.rows_per_solve else len(pulls))
    if not len(pulls):
        set_damping(1.0)
        return Damping()
    trials = _search(curvature, pulls)
    scale = _least(trials)
    set_damping(scale)
    known = {c: trial for c, trial in sorted(trials.items()) if math.isfinite(trial.missed)}
    return Damping(scale, {c: t.gain for c, t in known.items()}, {c: t.missed for c, t in known.items()})


def _search(curvature: Curvature, pulls: Tensor) -> dict[float, Trial]:
    """The trials of the multiples among which the best one lies."""
    together = SCALES[:_TOGETHER] if curvature.cost.rows_per_solve else SCALES[:1]
    trials = dict(zip(together, curvature.trials(pulls, together), strict=True))
    if trials[1.0].missed <= _NEARLY_EXACT:
        return {1.0: trials[1.0]}
    for scale, following in itertools.pairwise(SCALES):
        if following not in trials:
            (trials[following],) = curvature.trials(pulls, [following])
        if trials[following].missed <= _MOST_MISSED and trials[following].gain <= trials[scale].gain:
            break
    return trials


def _least(trials: Mapping[float, Trial]) -> float:
    """The least multiple with nearly the largest gain that does not miss too much curvature."""
    scales = sorted(trials)
    enough = (1 - _FLAT) * max(trial.gain for trial in trials.values())
    lacking = [enough - trials[scale].gain for scale in scales]
    missed = [math.log(trials[scale].missed / _MOST_MISSED) for scale in scales]
    return float(f"{max(_crossing(scales, lacking), _crossing(scales, missed)):.3g}")


def _crossing(scales: Sequence[float], values: Sequence[float]) -> float:
    """Where values that belong to multiples first fall to 0, interpolated over log c; the last multiple if nowhere."""
    for number, value in enumerate(values):
        if value <= 0:
            if not number or not math.isfinite(values[number - 1]):
                return scales[number]
            before = values[number - 1]
            step = math.log(scales[number] / scales[number - 1])
            return scales[number - 1] * math.exp(step * before / (before - value))
    return scales[-1]


def _comparable(pulls: Tensor, most: int) -> Tensor:
    """At most ``most`` evenly spaced pulls ``(B, P)`` that are not zero, divided by the norm of the longest."""
    pulls = pulls[pulls.any(1)]
    if not len(pulls):
        return pulls
    spaced = torch.linspace(0, len(pulls) - 1, min(most, len(pulls))).round().long()
    chosen: Tensor = pulls[spaced] / pulls[spaced].norm(dim=1).max()
    return chosen


def check_facts(facts: Mapping[str, float]) -> None:
    """Raise ``ValueError`` unless stored facts about the choice are finite numbers with a positive ``scale``."""
    if not isinstance(facts, dict) or not all(map(is_finite, facts.values())):
        raise ValueError("the damping is not a table of finite numbers")
    if facts.get("scale", 1.0) <= 0:
        raise ValueError("the damping must be positive")
