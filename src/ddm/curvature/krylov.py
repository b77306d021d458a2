"""GMRES: solves (I − T) x = b for many right-hand sides at once, each with an operator T of its own.

After m steps, x is the vector of span{b, Tb, …, T^(m−1) b} with the smallest residual |b − (I − T) x|.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def solve_identity_minus(apply: Callable[[Tensor], Tensor], right: Tensor, max_steps: int, tolerance: float) -> Tensor:
    """x ``(B, P)`` with x − T(x) ≈ b for right-hand sides ``(B, P)``; ``apply`` gives T of each row ``(B, P)``.

    The iteration stops when every residual is at most ``tolerance`` times its right-hand side.
    """
    rounding = 10 * torch.finfo(right.dtype).eps
    length = right.norm(dim=1)
    basis = [_unit(right, length)]
    hessenberg = torch.zeros(len(right), max_steps + 1, max_steps, dtype=torch.float64)
    for step in range(max_steps):
        following = basis[step] - apply(basis[step])
        whole = following.norm(dim=1)
        for earlier, vector in enumerate(basis):
            product = (following * vector).sum(1)
            hessenberg[:, earlier, step] = product.double().cpu()
            following = following - product[:, None] * vector
        size = following.norm(dim=1)
        size = torch.where(size > rounding * whole, size, 0.0)  # 0 where the basis spans all that T reaches
        hessenberg[:, step + 1, step] = size.double().cpu()
        weights, residuals = _least_squares(hessenberg[:, : step + 2, : step + 1])
        if bool((residuals[length.cpu() > 0] <= tolerance).all()):
            break
        basis.append(_unit(following, size))
    total = torch.zeros_like(right)
    for vector, weight in zip(basis, weights.T.to(right), strict=False):
        total += (length * weight)[:, None] * vector
    return total


def _unit(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Vectors ``(B, P)`` divided by their lengths ``(B,)``; zero where the length is 0."""
    return torch.where(lengths[:, None] > 0, vectors / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)[:, None], 0.0)


def _least_squares(hessenberg: Tensor) -> tuple[Tensor, Tensor]:
    """y ``(B, m)`` that minimises |e_1 − H y| for matrices H ``(B, m + 1, m)``, and these residuals ``(B,)``."""
    first = torch.zeros_like(hessenberg[:, :, :1])
    first[:, 0] = 1
    solved = torch.linalg.lstsq(hessenberg, first, driver="gelsd").solution
    return solved[..., 0], (first - hessenberg @ solved).norm(dim=(1, 2))
