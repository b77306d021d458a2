"""What a synset starts from: samples of its group or noise, and their labels."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.samples import Samples
from ddm.distil.settings import Settings
from ddm.training.target import Target

_LOOKS = 8
"""Checkpoints at which the starting images are looked at for their reflected targets."""


def start(
    target: Target, samples: Samples, members: np.ndarray, name: str, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Images ``(ipc, ...)`` and targets ``(ipc, L)`` for the group ``name`` with samples at ``members``.

    The draw depends on the seed and the group's name alone, not on which groups are distilled beside it.
    """
    rows, generator = drawn(members, name, settings)
    images, labels = samples.batch(rows)
    if settings.start_images == "noise":
        images = torch.randn(images.shape, generator=generator)
    images = images.to(target.theta)
    targets = F.one_hot(labels, target.outputs(images[:1]).shape[1]).to(target.theta)
    if settings.labels == "soft" and settings.matching == "reverse":
        targets = _reflected(target, images, targets)
    return images, targets


def drawn(members: np.ndarray, name: str, settings: Settings) -> tuple[np.ndarray, torch.Generator]:
    """Which samples ``(ipc,)`` of a group a synset starts from, and what draws whatever else it needs."""
    digest = hashlib.sha256(f"{settings.seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return members[_draw(len(members), settings.ipc, generator).numpy()], generator


def _draw(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """``wanted`` positions below ``count``, each used once before any is used again."""
    rounds = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:wanted]


def _reflected(target: Target, images: Tensor, targets: Tensor) -> Tensor:
    """2p − y with p the mean prediction along the trajectory: the target whose pull p − q̃ is that of y, reversed."""
    looks = np.unique(np.linspace(0, len(target.trajectory) - 1, _LOOKS).round().astype(int))
    predictions = torch.zeros_like(targets)
    with torch.no_grad():
        for t in looks:
            theta, fixed = target.at(int(t))
            predictions += target.flat(theta, fixed, images).softmax(1) / len(looks)
    return 2 * predictions - targets
