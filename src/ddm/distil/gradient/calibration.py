"""The step sizes α_κ of gradient matching: how far the fine-tuning moves along the synset's direction.

Cosine matching gives a direction without a length. Let ``d_κ = −∇L(θ_τ; S_κ)`` be the direction of the fine-tuning,
``u_κ`` its unit vector, and ``ḡ_κ = n_κ/(n − n_κ) mean_t ∇L(θ_t; D_κ)`` the pull of the group, which the mean loss of
the other data lacks. Without the group, the other data push back with their curvature G, so the displacement c settles
where
``½ c² uᵀ(G + λI)u − c uᵀḡ`` is smallest:

    c_κ = u_κᵀḡ_κ / (u_κᵀ G u_κ + λ),    λ = 1 / Σ learning rates,    α_κ = c_κ / ‖d_κ‖.

``uᵀGu`` is the Gauss–Newton curvature of the training loss, pooled over a few checkpoints. It needs only forward passes
(a difference of the logits along u), so it works for any network.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.directional import curvature_along
from ddm.data.samples import Samples
from ddm.training.target import Target

_SAMPLES, _FEWEST, _WORK = 128, 16, 2**28
"""The curvature is measured on _SAMPLES samples. Large networks use fewer, but at least _FEWEST, so that samples ×
parameters stay below _WORK."""

_CHECKPOINTS = 3
"""Checkpoints at which the curvature is measured."""


def calibrate_step_sizes(
    target: Target,
    samples: Samples,
    directions: Tensor,
    wanted: Tensor,
    damping: float,
    advance: Advance = lambda amount: None,
) -> Tensor:
    """α_κ ``(B,)`` of directions d and pulls ḡ ``(B, P)``: removing the group moves the target to θ_τ + α_κ d_κ."""
    norms = directions.norm(dim=1)
    units = directions / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None]
    reach = (units * wanted).sum(1) / (curvature_along_each(target, samples, units, advance) + damping)
    return torch.where(norms > 0, reach / norms, 0.0).nan_to_num(0.0, 0.0, 0.0)


def calibration_passes(target: Target) -> int:
    """Forward passes of samples that calibrating one group needs."""
    return _CHECKPOINTS * _sample_count(target)


def curvature_along_each(
    target: Target, samples: Samples, units: Tensor, advance: Advance = lambda amount: None
) -> Tensor:
    """uᵀGu ``(B,)`` for unit vectors ``(B, P)``; ``advance`` counts forward passes of samples."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(samples), generator=generator)[: _sample_count(target)]
    x, y = samples.batch(rows)
    x, y = x.to(target.device), y.to(target.device)
    checkpoints = np.unique(np.linspace(0, len(target.trajectory) - 1, _CHECKPOINTS).round().astype(int))
    total = torch.zeros(len(units), dtype=units.dtype, device=units.device)
    for t in checkpoints:
        theta, fixed = target.at(int(t))
        for row, unit in enumerate(units):
            total[row] += curvature_along(target, theta, fixed, x, y, unit) / len(checkpoints)
            advance(len(x))
    return total


def _sample_count(target: Target) -> int:
    return min(_SAMPLES, max(_FEWEST, _WORK // target.flat.size))
