"""Gram matrices and their Cholesky factors. Where that saves time, only the lower half is computed."""

from __future__ import annotations

import torch
from torch import Tensor


def gram(rows: Tensor) -> Tensor:
    """RRᵀ ``(M, M)`` of rows R ``(M, P)``. Only the lower half is valid."""
    if not _fits_blas(rows):
        return rows @ rows.T
    from scipy.linalg.blas import dsyrk, ssyrk

    product = dsyrk if rows.dtype == torch.float64 else ssyrk
    return torch.from_numpy(product(1.0, rows.numpy().T, trans=1, lower=False).T)


def add_gram_of_columns(total: Tensor, rows: Tensor) -> None:
    """total += RᵀR ``(P, P)``. Only the lower half is valid."""
    if not _fits_blas(rows):
        total += rows.T @ rows
        return
    from scipy.linalg.blas import dsyrk, ssyrk

    product = dsyrk if rows.dtype == torch.float64 else ssyrk
    product(1.0, rows.numpy().T, beta=1.0, c=total.numpy().T, overwrite_c=True, lower=False)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of a matrix whose lower half is valid; overwrites the matrix where it can."""
    if not _fits_blas(matrix):
        factored: Tensor = torch.linalg.cholesky(matrix)
        return factored
    from scipy.linalg.lapack import dpotrf, spotrf

    factor = dpotrf if matrix.dtype == torch.float64 else spotrf
    found, failed = factor(matrix.numpy().T, lower=False, clean=False, overwrite_a=True)
    if failed:
        raise torch.linalg.LinAlgError("the matrix is not positive definite.")  # type: ignore[attr-defined]
    return torch.from_numpy(found.T)


def _fits_blas(matrix: Tensor) -> bool:
    """True if scipy's BLAS routines, which compute one half only, accept the matrix."""
    return matrix.device.type == "cpu" and matrix.dtype in (torch.float32, torch.float64)
