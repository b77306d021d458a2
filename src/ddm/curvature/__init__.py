"""Gradients, and linear solves with the curvature of the training loss.

``pooled_curvature`` chooses the estimate; ``protocol.Curvature`` says what every estimate offers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ddm.curvature.protocol import Cost, Curvature
from ddm.curvature.sampled import SampledCurvature
from ddm.data.samples import Samples
from ddm.training.target import Target

__all__ = ["Cost", "Curvature", "pooled_curvature"]


def pooled_curvature(
    target: Target,
    samples: Samples,
    checkpoints: Sequence[int],
    weights: Tensor,
    damping: float | Tensor,
    *,
    rows: int | None = None,
    memory: float = 2.0,
    seed: int = 0,
) -> Curvature:
    """The curvature of the training loss, pooled over checkpoints with weights ω ``(T,)``, plus the damping.

    damping: λ, or one value for each parameter ``(P,)``
    rows:    number of random rows that estimate the curvature; None chooses by the size of the network
    memory:  maximum GiB for these rows
    """
    return SampledCurvature(target, samples, checkpoints, weights, damping, rows, memory, seed)
