"""Influence functions: to first order, how θ moves when a group is removed, and how that changes a loss.

Without group κ the minimum of the mean training loss moves by ``Δ_κ = (1/n) Σ_{i∈κ} (H + λI)⁻¹ g_i``, where g_i is the
loss gradient of sample i at θ_τ. The loss of a query z then changes by ``g_zᵀ Δ_κ``. H is symmetric, so the inverse may
be applied either to the groups or to the queries.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.baselines.group_scores import scores_from_loss_effects
from ddm.baselines.protocol import ScoreRequest, Scores
from ddm.curvature.gradients import group_gradients, loss_gradient
from ddm.data.samples import Samples


def group_pulls(request: ScoreRequest) -> Tensor:
    """``(1/n) Σ_{i∈κ} g_i`` of every group ``(K, P)``."""
    partition = request.partition
    rows = [partition.rows(k) for k in range(len(partition))]
    means = group_gradients(request.target, request.train, rows, [-1])[:, 0]
    return means * torch.as_tensor(partition.shares, dtype=means.dtype)[:, None]


def mean_gradient(request: ScoreRequest, samples: Samples) -> Tensor:
    """The gradient ``(P,)`` of the samples' mean loss at θ_τ."""
    target = request.target
    return loss_gradient(target, target.theta, target.fixed, *samples.batch())


def gradient_products(request: ScoreRequest, samples: Samples, vectors: Tensor) -> np.ndarray:
    """``g_iᵀ v`` ``(n, B)`` for samples and vectors ``(B, P)``; holds one gradient at a time to save memory."""
    products = [vectors @ mean_gradient(request, samples[[i]]) for i in range(len(samples))]
    return torch.stack(products).cpu().double().numpy()


def score_displacements(request: ScoreRequest, displacements: Tensor) -> Scores:
    """Scores of groups whose removal moves θ by ``displacements (K, P)``."""
    loss = gradient_products(request, request.test, displacements).T
    validation = (displacements @ mean_gradient(request, request.validation)).cpu().double().numpy()
    return scores_from_loss_effects(loss, validation)
