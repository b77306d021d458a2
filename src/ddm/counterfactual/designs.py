"""Designs: the perturbations p ∈ {0, 1}^K to evaluate. As in the paper, 0 removes a group.

The code works with ``removed = (p == 0)``, one row for each perturbation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddm.compute.validation import check_upper_bounds
from ddm.errors import InputError

Weights = str | Callable[[np.ndarray], np.ndarray]
"""β_p: uniform, removed, or a callable of p ``(M, K)`` that gives ``(M,)``."""


def leave_one_out(groups: int) -> np.ndarray:
    """Each group removed once: ``(K, K)``."""
    return np.eye(groups, dtype=bool)


def random(groups: int, count: int, fraction: float = 0.5, seed: int = 0) -> np.ndarray:
    """``count`` perturbations ``(count, K)`` that each remove a random ``fraction`` of the groups, at least one."""
    check_upper_bounds(perturbations=count)
    if count < 1 or not 0 < fraction < 1:
        raise InputError("a random design needs at least 1 perturbation and a fraction between 0 and 1.")
    size = min(groups, max(1, round(fraction * groups)))
    ranks = np.random.default_rng(seed).random((count, groups)).argsort(axis=1).argsort(axis=1)
    design: np.ndarray = ranks < size
    return design


def given(design: object, groups: int) -> np.ndarray:
    """``removed (M, K)`` of the user's own design p ``(M, K)``, 1 where a group stays, 0 where it is removed."""
    present = np.asarray(design)
    if present.ndim != 2 or present.shape[1] != groups or len(present) == 0:
        raise InputError(
            f"a design of shape {present.shape} does not fit {groups} groups: give one row for each perturbation."
        )
    if not np.isin(present, (0, 1)).all():
        raise InputError("a design holds only 1 (the group stays) and 0 (it is removed).")
    removed = ~present.astype(bool)
    if removed.all(1).any():
        raise InputError(
            f"row {int(removed.all(1).argmax())} of the design removes every group, which leaves no training data: "
            "keep at least one."
        )
    return removed


def weights(removed: np.ndarray, beta: Weights) -> np.ndarray:
    """β_p ``(M,)``. ``removed`` weighs a perturbation by 1 / (number of removed groups), so small ones count more."""
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


def make(design: str | np.ndarray, groups: int, perturbations: int | None = None, seed: int = 0) -> np.ndarray:
    """``removed (M, K)`` of a design: leave-one-out, random (M = ``perturbations``, default 4 K), or an array."""
    if not isinstance(design, str):
        return given(design, groups)
    if design == "leave-one-out":
        return leave_one_out(groups)
    if design == "random":
        return random(groups, 4 * groups if perturbations is None else perturbations, seed=seed)
    raise InputError(f"there is no design '{design}': use leave-one-out, random or an array.")
