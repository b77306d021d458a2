"""Chooses the damping by curvature that the solve has not seen.

M rows sample few of the directions in which a large network is stiff. In the others the solve sees only the damping,
and with the damping Λ of the training it moves much too far. So the solve uses a multiple of it:

    d_κ = (Ḡ + cΛ)⁻¹ ḡ_κ.

To first order, a step along d_κ lowers the loss of the other data by at most half of the gain

    gain(c) = Σ_κ (d_κᵀḡ_κ)² / d_κᵀ(Ḡ' + Λ)d_κ,

where Ḡ' comes from rows that the solve has not seen. A direction that is stiff without the solve knowing it lowers the
gain. The gain does not depend on the lengths of the d_κ, and its maximum needs no retraining. For an optimizer that
scales each parameter the matrix is not symmetric, and the gain is only an approximation of the decrease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddm.compute.validation import is_finite
from ddm.curvature.protocol import Curvature

SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The multiples c that can be chosen."""

_LEAST_RISE = 0.01
"""Relative rise of the gain that justifies another multiple. Where rows are many, the gain is flat, and smaller
differences are noise."""

_TOGETHER, _FEW_PULLS = 5, 4
"""Number of multiples, from 1 on, that are tried at once if every solve recomputes its rows, and maximum pulls then."""


@dataclass(frozen=True)
class Damping:
    """The multiple c of the training's damping that solves use, and the gain of each multiple that was tried."""

    scale: float = 1.0
    gains: dict[float, float] = field(default_factory=dict)


def choose_damping(curvature: Curvature, pulls: Tensor) -> Damping:
    """Set the curvature's damping to the multiple with the largest gain for pulls ``(B, P)`` of some groups.

    The search climbs from c = 1, the damping of the training, and stops where the gain falls, because each multiple
    costs a factorisation. If the best of SCALES is better than c = 1, so that rows are few, the maximum lies between
    its neighbours: at the vertex of the parabola through the three gains over log c.
    """
    pulls = _comparable(pulls, _FEW_PULLS if curvature.cost.rows_per_solve else len(pulls))
    if not len(pulls):
        curvature.set_damping(1.0)
        return Damping()
    start = best = SCALES.index(1.0)
    together = SCALES[start : start + _TOGETHER] if curvature.cost.rows_per_solve else ()
    gains = dict(zip(together, curvature.gains(pulls, together), strict=True)) if together else {}

    def at(position: int) -> float:
        scale = SCALES[position]
        if scale not in gains:
            (gains[scale],) = curvature.gains(pulls, [scale])
        return gains[scale]

    while best + 1 < len(SCALES) and at(best + 1) > at(best):
        best += 1
    if best == start and _may_rise(at(start + 1), at(start)):
        while best > 0 and at(best - 1) > at(best):
            best -= 1
    chosen = 1.0
    if at(best) > (1 + _LEAST_RISE) * at(start):
        nearest = [at(position) for position in (best - 1, best, best + 1) if 0 <= position < len(SCALES)]
        chosen = _vertex(SCALES[best], nearest)
    curvature.set_damping(chosen)
    return Damping(chosen, dict(sorted(gains.items())))


def _comparable(pulls: Tensor, most: int) -> Tensor:
    """At most ``most`` evenly spaced pulls ``(B, P)`` that are not zero, divided by the norm of the longest."""
    pulls = pulls[pulls.any(1)]
    if not len(pulls):
        return pulls
    spaced = torch.linspace(0, len(pulls) - 1, min(most, len(pulls))).round().long()
    chosen: Tensor = pulls[spaced] / pulls[spaced].norm(dim=1).max()
    return chosen


def _may_rise(above: float, here: float) -> bool:
    """True if a smaller multiple may have a clearly larger gain: the gain is concave in log c, so this bounds it."""
    return 2 * here - above > (1 + 5 * _LEAST_RISE) * here


def _vertex(scale: float, gains: list[float]) -> float:
    """The multiple at the vertex of the parabola through the gains of ``scale``, the largest, and its neighbours.

    The neighbours are taken to be a factor of √10 away. At an end of SCALES, which has one neighbour, it is ``scale``.
    """
    if len(gains) < 3:
        return scale
    below, here, above = gains
    bend = below - 2 * here + above
    steps = min(max((below - above) / (2 * bend), -1.0), 1.0) if bend < 0 else 0.0
    return float(f"{scale * 10 ** (steps / 2):.3g}")


def check_facts(facts: Mapping[str, float]) -> None:
    """Raise ``ValueError`` unless stored facts about the choice are finite numbers with a positive ``scale``."""
    if not isinstance(facts, dict) or not all(map(is_finite, facts.values())):
        raise ValueError("the damping is not a table of finite numbers")
    if facts.get("scale", 1.0) <= 0:
        raise ValueError("the damping must be positive")
