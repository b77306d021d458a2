"""Which checkpoints are compared at each distillation step."""

from __future__ import annotations

import torch

from ddm.matching.settings import Settings

Pair = tuple[int, int]
"""The checkpoint of the real gradient and that of the synset's."""


def draw(settings: Settings, tau: int) -> list[Pair]:
    """A pair of checkpoints in 0 … τ for each distillation step.

    Algorithm 1 draws t and compares ∇L(θ_t; D_κ) with ∇L(θ_{t+s}; S_κ); here t + s may reach τ, where fine-tuning
    starts. Eq. 6 compares with ∇L(θ_{τ−t}; S_κ).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    offset = min(settings.offset, tau)
    last = tau - offset if settings.matching == "reverse" and settings.pairing == "offset" else tau
    starts = torch.randint(0, last + 1, (settings.steps,), generator=generator).tolist()
    if settings.matching == "forward":
        return [(t, t) for t in starts]
    if settings.pairing == "mirror":
        return [(t, tau - t) for t in starts]
    return [(t, t + offset) for t in starts]
