"""Influence functions: how θ moves to first order when a group is removed, and what that does to a loss.

Without group κ the minimum of the mean training loss moves by ``Δ_κ = (1/n) Σ_{i∈κ} (H + λI)⁻¹ g_i``, with g_i the
gradient of the loss of sample i at θ_τ, and the loss of a sample z by ``g_zᵀ Δ_κ``. H is symmetric, so it does not
matter whether the inverse is applied to the groups or to the samples that are asked about.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.baselines.effects import influences
from ddm.baselines.protocol import Question, Scores
from ddm.datasets.samples import Samples
from ddm.gradients import group_gradients, loss_gradient


def pulls(question: Question) -> Tensor:
    """``(1/n) Σ_{i∈κ} g_i`` of every group ``(K, P)``."""
    partition = question.partition
    rows = [partition.rows(k) for k in range(len(partition))]
    means = group_gradients(question.target, question.train, rows, [-1])[:, 0]
    return means * torch.as_tensor(partition.shares, dtype=means.dtype)[:, None]


def gradient(question: Question, samples: Samples) -> Tensor:
    """The gradient of the mean loss of some samples at θ_τ ``(P,)``."""
    target = question.target
    return loss_gradient(target, target.theta, target.fixed, *samples.batch())


def products(question: Question, samples: Samples, vectors: Tensor) -> np.ndarray:
    """``g_iᵀ v`` ``(n, B)`` for samples and vectors ``(B, P)``, a gradient at a time to hold only one."""
    found = [vectors @ gradient(question, samples[[i]]) for i in range(len(samples))]
    return torch.stack(found).cpu().double().numpy()


def displaced(question: Question, moves: Tensor) -> Scores:
    """What moves of θ ``(K, P)``, one for each group's removal, do to the losses."""
    loss = products(question, question.test, moves).T
    validation = (moves @ gradient(question, question.validation)).cpu().double().numpy()
    return influences(loss, validation)
