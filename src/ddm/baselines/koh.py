"""Influence functions of Koh & Liang (2017), with dattri's conjugate gradients and LiSSA.

Both methods solve once per group rather than once per query, because there are fewer groups. To save time, H is
computed on at most 256 training samples; the gradients of the groups use all their samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddm.baselines.hessian import Curvature, estimate_curvature
from ddm.baselines.influence import group_pulls, score_displacements
from ddm.baselines.peers import isolated_library
from ddm.baselines.point import FlatModel
from ddm.baselines.protocol import ScoreRequest, Scores

_ITERATIONS = 10
_DEPTH = 40
_BATCH = 16
_BATCH_SPREAD = 3.0
"""LiSSA diverges if a batch has more than this many times the curvature of all samples."""


def koh_cg(request: ScoreRequest, iterations: int = _ITERATIONS) -> Scores:
    """``Δ_κ`` by ``iterations`` steps of conjugate gradients."""
    with isolated_library("dattri", request.seed):
        from dattri.algorithm.influence_function import IFAttributorCG

        curvature = estimate_curvature(request)
        attributor = IFAttributorCG(dattri_task(request), max_iter=iterations, regularization=curvature.damping)
        return score_displacements(request, solve_with_dattri(attributor, curvature, group_pulls(request)))


def koh_lissa(request: ScoreRequest, depth: int = _DEPTH, batch: int = _BATCH) -> Scores:
    """``Δ_κ`` by ``depth`` terms of the Neumann series, each on the Hessian of ``batch`` samples."""
    with isolated_library("dattri", request.seed):
        return score_displacements(request, lissa_solve(request, group_pulls(request), depth, batch))


def lissa_solve(request: ScoreRequest, vectors: Tensor, depth: int, batch: int) -> Tensor:
    """``(H + λI)⁻¹ v ≈ s⁻¹ Σ_j (I − (H + λI)/s)^j v`` for vectors ``(B, P)``."""
    from dattri.algorithm.influence_function import IFAttributorLiSSA

    curvature = estimate_curvature(request)
    batch = min(batch, len(curvature.x))
    spread = 1.0 if batch == len(curvature.x) else _BATCH_SPREAD
    scale = spread * (curvature.highest + curvature.damping) * 1.1
    attributor = IFAttributorLiSSA(
        dattri_task(request), batch_size=batch, recursion_depth=depth, damping=curvature.damping / scale, scaling=scale
    )
    return solve_with_dattri(attributor, curvature, vectors)


def dattri_task(request: ScoreRequest) -> Any:
    """The target's loss at θ_τ as a dattri task."""
    from dattri.task import AttributionTask

    target = request.target

    def loss(parameters: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
        x, y = data
        labels = y.long() if target.task.has_classes else y  # LiSSA turns labels to floats
        return target.loss(target.flat(parameters["theta"], target.fixed, request.packing.unpack(x)), labels)

    model = FlatModel(target, request.packing)
    return AttributionTask(loss, model, model.state_dict())


def solve_with_dattri(attributor: Any, curvature: Curvature, vectors: Tensor) -> Tensor:
    """dattri's ``(H + λI)⁻¹ v`` for vectors ``(B, P)``."""
    attributor.cache([(curvature.x, curvature.y)])  # a single batch: dattri would sum the inverses of several
    solutions = torch.zeros_like(vectors)
    for row, vector in enumerate(vectors):  # one at a time: memory grows with the number of vectors solved together
        length = vector.norm()
        if length > 0:  # dattri's first step on a zero vector is 0/0
            with torch.no_grad():  # dattri differentiates inside; autograd would otherwise record every step
                solutions[row] = attributor.transform_test_rep(0, vector[None] / length)[0] * length
    return solutions
