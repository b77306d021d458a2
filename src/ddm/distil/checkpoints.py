"""The checkpoints at which gradients are computed and, at each distillation step, compared."""

from __future__ import annotations

import numpy as np
import torch

from ddm.distil.settings import Settings

Pair = tuple[int, int]
"""The checkpoint of the real gradient, and the checkpoint of the synset's gradient."""


def real_checkpoints(settings: Settings, tau: int, first: int = 0) -> list[int]:
    """Evenly spaced checkpoints in first … τ, both ends included, at which real gradients are computed."""
    count = min(settings.checkpoints, tau + 1 - first)
    spaced: list[int] = np.linspace(first, tau, count).round().astype(int).tolist()
    return spaced


def draw_pairs(settings: Settings, tau: int) -> list[Pair]:
    """A random pair of checkpoints for each distillation step.

    Algorithm 1 draws t and compares ∇L(θ_t; D_κ) with ∇L(θ_{t+s}; S_κ). Here t + s may reach τ, where the fine-tuning
    starts. The offset s is at most τ/2; otherwise a short trajectory would leave t = 0 as the only choice. Eq. 6
    compares ∇L(θ_t; D_κ) with ∇L(θ_{τ−t}; S_κ) instead.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    offset = min(settings.offset, max(1, tau // 2)) if settings.pairing == "offset" else 0
    if settings.matching == "forward":
        offset = 0
    candidates = [t for t in real_checkpoints(settings, tau) if t + offset <= tau]
    positions = torch.randint(0, len(candidates), (settings.steps,), generator=generator).tolist()
    chosen = [candidates[position] for position in positions]
    if settings.matching == "reverse" and settings.pairing == "mirror":
        return [(t, tau - t) for t in chosen]
    return [(t, t + offset) for t in chosen]
