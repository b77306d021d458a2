"""Influence functions as Koh & Liang (2017) compute them, with dattri's conjugate gradients and LiSSA.

Both solve for the K groups rather than for each sample that is asked about, which are more. H is that of at most 256
training samples, for the time it takes; the gradients of the groups are those of all their samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddm.baselines.hessian import Curvature, curvature
from ddm.baselines.influence import displaced, pulls
from ddm.baselines.peers import peer
from ddm.baselines.point import Point
from ddm.baselines.protocol import Question, Scores

_ITERATIONS = 10
_DEPTH = 40
_BATCH = 16
_SPREAD = 3.0
"""How much larger the curvature of a batch may be than that of all samples; LiSSA diverges beyond."""


def koh_cg(question: Question, iterations: int = _ITERATIONS) -> Scores:
    """``Δ_κ`` by ``iterations`` steps of conjugate gradients."""
    with peer("dattri", question.seed):
        from dattri.algorithm.influence_function import IFAttributorCG

        bend = curvature(question)
        attributor = IFAttributorCG(task(question), max_iter=iterations, regularization=bend.damping)
        return displaced(question, solved(attributor, bend, pulls(question)))


def koh_lissa(question: Question, depth: int = _DEPTH, batch: int = _BATCH) -> Scores:
    """``Δ_κ`` by ``depth`` terms of the Neumann series, each on the Hessian of ``batch`` samples."""
    with peer("dattri", question.seed):
        return displaced(question, lissa(question, pulls(question), depth, batch))


def lissa(question: Question, vectors: Tensor, depth: int, batch: int) -> Tensor:
    """``(H + λI)⁻¹ v ≈ s⁻¹ Σ_j (I − (H + λI)/s)^j v`` for vectors ``(B, P)``."""
    from dattri.algorithm.influence_function import IFAttributorLiSSA

    bend = curvature(question)
    batch = min(batch, len(bend.x))
    spread = 1.0 if batch == len(bend.x) else _SPREAD
    scale = spread * (bend.highest + bend.damping) * 1.1
    attributor = IFAttributorLiSSA(
        task(question), batch_size=batch, recursion_depth=depth, damping=bend.damping / scale, scaling=scale
    )
    return solved(attributor, bend, vectors)


def task(question: Question) -> Any:
    """The target's loss at θ_τ in dattri's terms."""
    from dattri.task import AttributionTask

    target = question.target

    def loss(parameters: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
        x, y = data
        return target.loss(target.flat(parameters["theta"], target.fixed, x), y.long())  # LiSSA makes labels floats

    point = Point(target)
    return AttributionTask(loss, point, point.state_dict())


def solved(attributor: Any, bend: Curvature, vectors: Tensor) -> Tensor:
    """dattri's ``(H + λI)⁻¹ v`` for vectors ``(B, P)``."""
    attributor.cache([(bend.x, bend.y)])  # one batch: dattri adds up the inverses of several
    moves = torch.zeros_like(vectors)
    for row, vector in enumerate(vectors):  # one at a time: several at once need the memory of several
        length = vector.norm()
        if length > 0:  # of a zero vector dattri's first step is 0/0
            with torch.no_grad():  # dattri differentiates inside; outside, every step of it would be recorded
                moves[row] = attributor.transform_test_rep(0, vector[None] / length)[0] * length
    return moves
