"""How far to go along the synset's direction: the one-dimensional response.

Cosine matching gives a direction and loses its length. Let ``d_κ = −∇L(θ_τ; S_κ)`` be the direction of the
fine-tuning, ``u_κ`` its unit vector, and ``ḡ_κ = n_κ/(n − n_κ) mean_t ∇L(θ_t; D_κ)`` the pull that the mean loss of the
others lacks. While the group is absent the other data push back with the curvature G, so the displacement settles where
``½ c² uᵀ(G + λI)u − c uᵀḡ`` is least:

    c_κ = u_κᵀḡ_κ / (u_κᵀ G u_κ + λ),    λ = 1 / Σ learning rates.

``uᵀGu`` is the generalised Gauss–Newton curvature of the training loss, pooled over checkpoints. It needs only forward
passes (a difference of the logits along u), so it works for any network.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.directional import curvature_along
from ddm.data.samples import Samples
from ddm.training.target import Target

_SAMPLES = 128
_FEWEST = 16
_WORK = 2**28
"""Curvature is looked at on up to _SAMPLES samples, fewer where samples × parameters would exceed _WORK."""

CHECKPOINTS = 3


def calibrated(
    target: Target,
    samples: Samples,
    directions: Tensor,
    wanted: Tensor,
    damping: float,
    advance: Advance = lambda amount: None,
) -> Tensor:
    """α_κ ``(B,)`` such that θ_τ + α_κ d_κ is the calibrated step, for directions and ḡ ``(B, P)``."""
    norms = directions.norm(dim=1)
    units = directions / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None]
    reach = (units * wanted).sum(1) / (curvature(target, samples, units, advance) + damping)
    return torch.where(norms > 0, reach / norms, 0.0).nan_to_num(0.0, 0.0, 0.0)


def curvature(target: Target, samples: Samples, units: Tensor, advance: Advance = lambda amount: None) -> Tensor:
    """uᵀGu ``(B,)`` for unit vectors ``(B, P)``, on some training samples at a few checkpoints."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(samples), generator=generator)[: looks(target)]
    x, y = (tensor.to(target.device) for tensor in samples.batch(rows))
    checkpoints = np.unique(np.linspace(0, len(target.trajectory) - 1, CHECKPOINTS).round().astype(int))
    total = torch.zeros(len(units), dtype=units.dtype, device=units.device)
    for t in checkpoints:
        theta, fixed = target.at(int(t))
        for row, unit in enumerate(units):
            total[row] += curvature_along(target, theta, fixed, x, y, unit) / len(checkpoints)
            advance(len(x))
    return total


def looks(target: Target) -> int:
    """Samples on which curvature is looked at."""
    return min(_SAMPLES, max(_FEWEST, _WORK // target.flat.size))
