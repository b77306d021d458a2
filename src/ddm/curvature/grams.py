"""Gram matrices by their lower halves, where that saves time, and their Cholesky factors."""

from __future__ import annotations

import torch
from torch import Tensor


def gram(rows: Tensor) -> Tensor:
    """RRᵀ ``(M, M)`` of rows R ``(M, P)``, of which the lower half counts."""
    if not _on_processor(rows):
        return rows @ rows.T
    from scipy.linalg.blas import dsyrk, ssyrk

    product = dsyrk if rows.dtype == torch.float64 else ssyrk
    return torch.from_numpy(product(1.0, rows.numpy().T, trans=1, lower=False).T)


def add_gram_of_columns(total: Tensor, rows: Tensor) -> None:
    """total += RᵀR ``(P, P)``, of which the lower half counts."""
    if not _on_processor(rows):
        total += rows.T @ rows
        return
    from scipy.linalg.blas import dsyrk, ssyrk

    product = dsyrk if rows.dtype == torch.float64 else ssyrk
    product(1.0, rows.numpy().T, beta=1.0, c=total.numpy().T, overwrite_c=True, lower=False)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower factor of a matrix whose lower half counts, in its place where that can be had."""
    if not _on_processor(matrix):
        factored: Tensor = torch.linalg.cholesky(matrix)
        return factored
    from scipy.linalg.lapack import dpotrf, spotrf

    factor = dpotrf if matrix.dtype == torch.float64 else spotrf
    found, failed = factor(matrix.numpy().T, lower=False, clean=False, overwrite_a=True)
    if failed:
        raise torch.linalg.LinAlgError("the matrix is not positive definite.")  # type: ignore[attr-defined]
    return torch.from_numpy(found.T)


def _on_processor(matrix: Tensor) -> bool:
    """Whether scipy's products, which make one half, take the matrix."""
    return matrix.device.type == "cpu" and matrix.dtype in (torch.float32, torch.float64)
