"""Designs: which perturbations p ∈ {0, 1}^K are tried. Rows of a design are ``removed``: True where p = 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddm.errors import InputError

Weights = str | Callable[[np.ndarray], np.ndarray]
"""β_p: uniform, removed, or a callable of p ``(M, K)`` that gives ``(M,)``."""


def leave_one_out(groups: int) -> np.ndarray:
    """Each group removed once: ``(K, K)``."""
    return np.eye(groups, dtype=bool)


def random(groups: int, count: int, fraction: float = 0.5, seed: int = 0) -> np.ndarray:
    """``count`` random unions, each of ``fraction`` of the groups (at least one): ``(count, K)``."""
    if count < 1 or not 0 < fraction < 1:
        raise InputError("a random design needs at least 1 perturbation and a fraction between 0 and 1.")
    size = min(groups, max(1, round(fraction * groups)))
    ranks = np.random.default_rng(seed).random((count, groups)).argsort(axis=1).argsort(axis=1)
    design: np.ndarray = ranks < size
    return design


def given(design: object, groups: int) -> np.ndarray:
    """A design of the user's own, checked: ``(M, K)`` booleans or zeros and ones, 1 where a group is removed."""
    removed = np.asarray(design)
    if removed.ndim != 2 or removed.shape[1] != groups or len(removed) == 0:
        raise InputError(
            f"a design of shape {removed.shape} does not fit {groups} groups: give one row a perturbation."
        )
    if not np.isin(removed, (0, 1)).all():
        raise InputError("a design holds only 0 (group stays) and 1 (group removed).")
    return removed.astype(bool)


def weights(removed: np.ndarray, beta: Weights) -> np.ndarray:
    """β_p ``(M,)``. ``removed`` weighs a perturbation by 1 / (number of removed groups): near ones count more."""
    if callable(beta):
        values = np.asarray(beta(~removed), dtype=float)
    elif beta == "uniform":
        values = np.ones(len(removed))
    elif beta == "removed":
        values = 1.0 / np.maximum(removed.sum(1), 1)
    else:
        raise InputError(f"there are no weights '{beta}': use uniform, removed or a callable.")
    if values.shape != (len(removed),) or not np.isfinite(values).all() or (values < 0).any():
        raise InputError("weights must be one finite number ≥ 0 for each perturbation.")
    return values
