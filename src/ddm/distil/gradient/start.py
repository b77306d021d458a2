"""The synthetic samples that the optimisation of a group starts from: samples of the group or noise, with targets."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.curvature.rows import draw_in_rounds
from ddm.data.samples import Samples
from ddm.distil.settings import Settings
from ddm.training.target import Target

_CHECKPOINTS = 8
"""Checkpoints over which predictions are averaged."""


def initial_samples(
    target: Target, samples: Samples, members: np.ndarray, name: str, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Images ``(ipc, ...)`` and targets ``(ipc, L)`` for the group ``name`` with samples at ``members``.

    They depend on the seed and the group's name alone, not on the other groups of the block.
    """
    rows, generator = draw_members(members, name, settings)
    images, labels = samples.tensors(rows)
    if settings.start_images == "noise":
        images = torch.randn(images.shape, generator=generator)
    images = images.to(target.theta)
    targets = F.one_hot(labels, target.outputs(images[:1]).shape[1]).to(target.theta)
    if settings.labels == "soft" and settings.matching == "reverse":
        targets = _reflect(target, images, targets)
    return images, targets


def draw_members(members: np.ndarray, name: str, settings: Settings) -> tuple[np.ndarray, torch.Generator]:
    """The samples ``(ipc,)`` of a group that a synset starts from, and the generator for further random numbers."""
    digest = hashlib.sha256(f"{settings.seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return members[draw_in_rounds(len(members), settings.ipc, generator).numpy()], generator


def _reflect(target: Target, images: Tensor, targets: Tensor) -> Tensor:
    """2p − y with p the mean prediction along the trajectory: its pull p − q̃ is that of y with the opposite sign."""
    checkpoints = np.unique(np.linspace(0, len(target.trajectory) - 1, _CHECKPOINTS).round().astype(int))
    predictions = torch.zeros_like(targets)
    with torch.no_grad():
        for t in checkpoints:
            theta, fixed = target.at(int(t))
            predictions += target.flat(theta, fixed, images).softmax(1) / len(checkpoints)
    return 2 * predictions - targets
