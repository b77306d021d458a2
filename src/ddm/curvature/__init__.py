"""Gradients, and linear solves with the curvature of the training loss.

``pooled_curvature`` chooses the estimate; ``protocol.Curvature`` says what every estimate offers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ddm.curvature.preconditioned import PreconditionedCurvature
from ddm.curvature.protocol import Cost, Curvature
from ddm.curvature.sampled import SampledCurvature
from ddm.curvature.step_weights import StepWeights
from ddm.data.samples import Samples
from ddm.training.target import Target

__all__ = ["Cost", "Curvature", "pooled_curvature"]


def pooled_curvature(
    target: Target,
    samples: Samples,
    checkpoints: Sequence[int],
    weights: StepWeights,
    damping: float | Tensor,
    *,
    rows: int | None = None,
    memory: float = 2.0,
    seed: int = 0,
) -> Curvature:
    """The curvature of the training loss, pooled over checkpoints by the weights of their steps, plus the damping.

    damping: λ, or one value for each parameter ``(P,)``
    rows:    number of random rows that estimate the curvature; None chooses by the size of the network
    memory:  maximum GiB for these rows
    """
    uniform = weights.uniform
    if uniform is None:
        return PreconditionedCurvature(target, samples, checkpoints, weights, damping, rows, memory, seed)
    return SampledCurvature(target, samples, checkpoints, uniform, damping, rows, memory, seed)
