"""The methods of every estimate of the curvature: a solve, a quadratic form, and their cost.

The response of a group solves ``(Ḡ + cΛ) d = ḡ``, with Ḡ the curvature of the training loss pooled over the trajectory,
Λ the damping of the training, and c the multiple of it that ``set_damping`` sets. Later stages get a curvature from
``ddm.curvature.pooled_curvature`` and use only the methods of this protocol. So a new estimate of Ḡ needs just one more
file in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance


@dataclass(frozen=True)
class Cost:
    """The cost of solving with a curvature.

    rows:            backward passes of single samples before the first solve, recomputations included
    rows_per_solve:  backward passes that each solve repeats
    multiplications: of the factorisation
    multiplications_per_vector: of solving for one right-hand side
    factor_bytes:    memory of the factorisation
    row_bytes:       memory of the rows
    keeps_rows:      True if the rows stay in memory after the factorisation
    """

    rows: int
    rows_per_solve: int
    multiplications: float
    multiplications_per_vector: float
    factor_bytes: int
    row_bytes: int
    keeps_rows: bool


@dataclass(frozen=True)
class Trial:
    """How the solutions of some groups with one multiple of the damping look to rows that the solve has not seen.

    gain:   ``ddm.curvature.damping``; 0 if the solve failed
    missed: the median over the groups of the curvature along their solution, d·(Ḡ' + Λ)d / d·ḡ, as a multiple of
            what the solve saw; infinite if the solve failed
    """

    gain: float
    missed: float

    @classmethod
    def of(cls, fitted: Tensor, unseen: Tensor) -> Trial:
        """The trial of groups with d·ḡ ``(B,)`` and dᵀ(Ḡ' + Λ)d ``(B,)``."""
        missed = unseen / fitted.clamp(min=torch.finfo(fitted.dtype).tiny)
        return cls(float((fitted.square() / unseen).sum()), float(missed.median()))


class Curvature(Protocol):
    """An estimate of Ḡ + cΛ for a network of P parameters.

    damping: Λ ``(P,)``
    scale:   c
    """

    damping: Tensor
    scale: float

    @property
    def cost(self) -> Cost:
        """The cost of preparing and solving, known before any work is done."""

    def prepare(self, advance: Advance = ...) -> None:
        """Compute the parts that all solves share, whatever the damping; ``advance`` counts rows."""

    def set_damping(self, scale: float, *, final: bool = True) -> None:
        """Solve with c = ``scale`` times the damping from now on. After a final choice, c cannot change any more."""

    def solve(self, right: Tensor, transposed: bool = False) -> Tensor:
        """(Ḡ + cΛ)⁻¹ b ``(B, P)`` for right-hand sides ``(B, P)``, or with the matrix transposed."""

    def solve_without(self, right: Tensor, members: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """(Ḡ − Ḡ_κ + cΛ)⁻¹ b_κ and (Ḡ + cΛ)⁻¹ b_κ, each ``(B, P)``, for right-hand sides ``(B, P)``.

        Ḡ_κ is the part of Ḡ that the samples at positions ``members[κ]`` contribute.
        """

    def trials(self, pulls: Tensor, scales: Sequence[float]) -> list[Trial]:
        """What unseen rows say about each multiple c in ``scales``, for pulls ``(B, P)``."""

    def unseen_quadratic(self, directions: Tensor) -> Tensor:
        """dᵀ(Ḡ' + Λ)d ``(B,)`` of directions ``(B, P)``, with Ḡ' from samples or signs that the solve has not seen."""

    def try_rows(self) -> int:
        """Compute a few rows, discard them and return their number. Callers measure the time of a row with it."""
