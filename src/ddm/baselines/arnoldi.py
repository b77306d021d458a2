"""Influence functions of Schioppa et al. (2022) with captum: the Hessian's largest eigenvalues, found by Arnoldi.

``(H + λI)⁻¹ ≈ V (S + λI)⁻¹ Vᵀ`` with the eigenvectors V of the ``rank`` largest eigenvalues S that ``steps`` steps of
the Arnoldi iteration find. H is that of at most 256 training samples, for the time it takes.
"""

from __future__ import annotations

from typing import Any

from ddm.baselines.effects import influences
from ddm.baselines.hessian import curvature
from ddm.baselines.peers import peer
from ddm.baselines.point import Point, Total, asked, gathered, loader, pieces
from ddm.baselines.protocol import Question, Scores

_STEPS = 100
_RANK = 50


def arnoldi(question: Question, steps: int = _STEPS, rank: int = _RANK) -> Scores:
    """``(1/n) Σ_{i∈κ} g_iᵀ V (S + λI)⁻¹ Vᵀ g_z``."""
    target = question.target
    batches, groups = pieces(question)
    inputs, items = asked(question)
    with peer("captum", question.seed):
        from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction

        bend = curvature(question)
        looked_at = len(bend.x)  # captum's Hessian is the sum over them: this many times H

        def stay(point: Point, checkpoint: Any) -> float:
            return 1.0

        method = ArnoldiInfluenceFunction(
            Point(target),
            loader(batches),
            "",
            stay,
            loss_fn=Total(target),
            hessian_dataset=loader(list(zip(bend.x.split(64), bend.y.split(64), strict=True))),
            projection_dim=rank,
            seed=question.seed,
            # captum drops its last step, and one more where it stops early: so it takes one extra and never stops.
            arnoldi_dim=min(steps, target.flat.size + 1),
            arnoldi_tol=0.0,
            hessian_reg=looked_at * bend.damping,
            hessian_inverse_tol=1e-6 * looked_at * bend.highest,
        )
        ours, theirs = (method.compute_intermediate_quantities(loader(part)).double() for part in (batches, inputs))
        scores = (ours @ theirs.T).numpy() * looked_at / len(question.train)
        kept = len(method.R) * target.flat.size * target.theta.element_size()
    return influences(*gathered(question, scores, groups, items), kept)
