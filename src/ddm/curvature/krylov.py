"""GMRES: solves (I − T) x = b for many right-hand sides at once, each with an operator T of its own.

After m steps, x is the vector of span{b, Tb, …, T^(m−1) b} with the smallest residual |b − (I − T) x|.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def solve_identity_minus(apply: Callable[[Tensor], Tensor], right: Tensor, steps: int) -> Tensor:
    """x ``(B, P)`` with x − T(x) ≈ b for right-hand sides ``(B, P)``; ``apply`` gives T of each row ``(B, P)``."""
    tiny = torch.finfo(right.dtype).tiny
    length = right.norm(dim=1).clamp(min=tiny)
    basis = [right / length[:, None]]
    hessenberg = right.new_zeros(len(right), steps + 1, steps)
    for step in range(steps):
        following = basis[step] - apply(basis[step])
        for earlier, vector in enumerate(basis):
            hessenberg[:, earlier, step] = (following * vector).sum(1)
            following = following - hessenberg[:, earlier, step, None] * vector
        size = following.norm(dim=1)
        hessenberg[:, step + 1, step] = size
        basis.append(following / size.clamp(min=tiny)[:, None])
    wanted = torch.zeros_like(hessenberg[:, :, :1])
    wanted[:, 0, 0] = length
    weights = torch.linalg.lstsq(hessenberg.double().cpu(), wanted.double().cpu(), driver="gelsd").solution[..., 0]
    total = torch.zeros_like(right)
    for step in range(steps):
        total += weights[:, step, None].to(right) * basis[step]
    return total
