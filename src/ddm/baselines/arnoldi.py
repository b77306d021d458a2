"""Influence functions of Schioppa et al. (2022) with captum: a low-rank inverse Hessian from the Arnoldi iteration.

``(H + λI)⁻¹ ≈ V (S + λI)⁻¹ Vᵀ``, where S holds the ``rank`` largest eigenvalues that ``steps`` Arnoldi steps find and V
their eigenvectors. To save time, H is computed on at most 256 training samples.
"""

from __future__ import annotations

from typing import Any

from ddm.baselines.group_scores import scores_from_loss_effects
from ddm.baselines.hessian import estimate_curvature
from ddm.baselines.peers import isolated_library
from ddm.baselines.point import FlatModel, SummedLoss, data_loader, group_batches, query_batches, sum_to_groups
from ddm.baselines.protocol import ScoreRequest, Scores

_STEPS = 100
_RANK = 50


def arnoldi(request: ScoreRequest, steps: int = _STEPS, rank: int = _RANK) -> Scores:
    """``(1/n) Σ_{i∈κ} g_iᵀ V (S + λI)⁻¹ Vᵀ g_z``."""
    target = request.target
    batches, groups = group_batches(request)
    queries, items = query_batches(request)
    with isolated_library("captum", request.seed):
        from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction

        curvature = estimate_curvature(request)
        count = len(curvature.x)  # captum sums the Hessian over samples, so its matrix is count × H

        def keep_checkpoint(model: FlatModel, checkpoint: Any) -> float:
            return 1.0

        method = ArnoldiInfluenceFunction(
            FlatModel(target, request.packing),
            data_loader(batches),
            "",
            keep_checkpoint,
            loss_fn=SummedLoss(target),
            hessian_dataset=data_loader(list(zip(curvature.x.split(64), curvature.y.split(64), strict=True))),
            projection_dim=rank,
            seed=request.seed,
            # captum drops its last step, and another one when it stops early: give it one extra step and never stop.
            arnoldi_dim=min(steps, target.flat.size + 1),
            arnoldi_tol=0.0,
            hessian_reg=count * curvature.damping,
            hessian_inverse_tol=1e-6 * count * curvature.highest,
        )
        train, test = (
            method.compute_intermediate_quantities(data_loader(part)).double() for part in (batches, queries)
        )
        scores = (train @ test.T).numpy() * count / len(request.train)
        stored_bytes = len(method.R) * target.flat.size * target.theta.element_size()
    return scores_from_loss_effects(*sum_to_groups(request, scores, groups, items), stored_bytes)
