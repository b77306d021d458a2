"""Which checkpoints are compared at each distillation step."""

from __future__ import annotations

import numpy as np
import torch

from ddm.distil.settings import Settings

Pair = tuple[int, int]
"""The checkpoint of the real gradient and that of the synset's."""


def real_checkpoints(settings: Settings, tau: int) -> list[int]:
    """Checkpoints in 0 … τ at which real gradients are taken: evenly spaced, both ends included."""
    count = min(settings.checkpoints, tau + 1)
    spaced: list[int] = np.linspace(0, tau, count).round().astype(int).tolist()
    return spaced


def draw(settings: Settings, tau: int) -> list[Pair]:
    """A pair of checkpoints for each distillation step.

    Algorithm 1 draws t and compares ∇L(θ_t; D_κ) with ∇L(θ_{t+s}; S_κ); here t + s may reach τ, where fine-tuning
    starts, and s is at most τ/2, so that a short trajectory is not seen at θ_0 alone. Eq. 6 compares with
    ∇L(θ_{τ−t}; S_κ).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    offset = min(settings.offset, max(1, tau // 2)) if settings.pairing == "offset" else 0
    if settings.matching == "forward":
        offset = 0
    starts = [t for t in real_checkpoints(settings, tau) if t + offset <= tau]
    drawn = torch.randint(0, len(starts), (settings.steps,), generator=generator).tolist()
    chosen = [starts[index] for index in drawn]
    if settings.matching == "reverse" and settings.pairing == "mirror":
        return [(t, tau - t) for t in chosen]
    return [(t, t + offset) for t in chosen]
