"""The curvature from sampled rows: Ḡ ≈ RᵀR, solved densely.

With fewer parameters than rows the solve factorises the P × P matrix RᵀR + cΛ. Otherwise Woodbury's identity needs an
M × M matrix only, for any multiple c of the damping:

    (RᵀR + cΛ)⁻¹ b = (b − Rᵀ (cI + RΛ⁻¹Rᵀ)⁻¹ RΛ⁻¹b) / (cΛ).

Rows that do not fit the memory are recomputed for each slice of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.grams import add_gram_of_columns, cholesky, gram
from ddm.curvature.krylov import solve_identity_minus
from ddm.curvature.protocol import Cost, Trial
from ddm.curvature.rows import CurvatureRows, fewer_for_large
from ddm.curvature.slicing import MAX_FLOATS, merge_rows, slices, stack_rows
from ddm.data.samples import Samples
from ddm.training.target import Target

_MOST_ROWS, _FEWEST_ROWS = 16384, 1024
"""Bounds of the default number of rows; large networks may have fewer."""

_SOLVE_WORK = 7e11
"""Maximum multiplications of a dense solve by default: about ten seconds on one core."""

_WORK_PER_PASS = 600
"""Maximum multiplications of a dense solve by default, for each parameter and each sample that the training processed
(samples × epochs). For a small network this takes about as long as the training."""

_TRIES = 4
"""Factorisations that the search for the damping usually takes."""

_KRYLOV_STEPS, _KRYLOV_RESIDUAL, _CHUNK = 40, 1e-3, 64
"""Maximum steps of the iteration that leaves the rows of a group out of a solve, the relative residual at which it
stops, and the groups that are solved at once."""

_FRESH_SHARE, _FEWEST_FRESH, _FRESH_ROWS = 4, 64, 1024
"""Rows of the solve for each row of the quadratic form, which the solve does not use, and bounds of their number."""


class SampledCurvature:
    """Ḡ ≈ RᵀR of a target on its training samples, with damping Λ.

    checkpoints: those over which the curvature is pooled, with weights ω ``(T,)``, Σω = 1
    damping:     λ, or one value for each parameter ``(P,)``
    rows:        M, spread evenly over the checkpoints; None chooses by the size of the network
    memory:      maximum GiB for the rows
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        checkpoints: Sequence[int],
        weights: Tensor,
        damping: float | Tensor,
        rows: int | None = None,
        memory: float = 2.0,
        seed: int = 0,
    ) -> None:
        self.size = target.flat.size
        self.damping = torch.as_tensor(damping).to(target.theta).expand(self.size)
        wanted = rows or min(affordable_rows(target, samples), len(samples) * len(checkpoints))
        self.rows = CurvatureRows(target, samples, checkpoints, weights, wanted, seed)
        self._fresh = CurvatureRows(
            target,
            samples,
            checkpoints,
            weights,
            min(_FRESH_ROWS, max(_FEWEST_FRESH, len(self.rows) // _FRESH_SHARE)),
            seed,
            skip=self.rows.per_checkpoint,
        )
        self.scale = 1.0
        self._matrix: Tensor | None = None
        self._factors: Any = None
        self._memory = int(memory * 2**30)
        self._float_bytes = target.theta.element_size()
        self.rows.keep = self._tall or self._keeps_rows
        # The search for the damping uses these rows several times.
        self._fresh.keep = len(self._fresh) * self.size * self._float_bytes <= self._memory // 2

    @property
    def cost(self) -> Cost:
        """The cost of preparing and solving."""
        count, small, large = len(self.rows), min(len(self.rows), self.size), max(len(self.rows), self.size)
        held = count * self.size * self._float_bytes
        return Cost(
            rows=count * (1 if self._tall else len(self._slices)),
            rows_per_solve=0 if self._tall or self._keeps_rows else 2 * count,
            multiplications=small**2 * large / 2 + _TRIES * small**3 / 3,
            multiplications_per_vector=2 * small * self.size,
            factor_bytes=2 * (4 if self._tall else 8) * small**2,
            row_bytes=held if self._tall else min(held, self._memory),
            keeps_rows=self._tall or self._keeps_rows,
        )

    def prepare(self, advance: Advance = lambda amount: None) -> None:
        """Compute the matrix that all solves share; ``advance`` counts rows."""
        if self._matrix is None and self._factors is None:
            self._matrix = self._gram_of_columns(advance) if self._tall else self._gram_of_rows(advance)

    def set_damping(self, scale: float, *, final: bool = True) -> None:
        """Solve with c = ``scale`` from now on. After a final choice the matrix is freed, and c stays."""
        self.prepare()
        if self._matrix is None:
            raise RuntimeError("the damping was final.")
        if self._factors is None or scale != self.scale:
            matrix = self._matrix if final else self._matrix.clone()
            matrix.diagonal().add_(scale)
            self.scale, self._factors = scale, self._factorise(matrix)
        if final:
            self._matrix = None
            self._fresh.forget()

    def solve(self, right: Tensor, transposed: bool = False) -> Tensor:
        """(Ḡ + cΛ)⁻¹ b ``(B, P)`` for right-hand sides ``(B, P)``, or with the matrix transposed."""
        right = self._ready(right)
        if self._tall:
            return self._solve_square(right, transposed)
        undamped = right / self.damping
        weights = self._solve_inner(self._seen_by_rows(undamped, transposed), transposed)
        return self._move(undamped, self._pushed_by_rows(weights, transposed))

    def solve_without(self, right: Tensor, members: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """(Ḡ − Ḡ_κ + cΛ)⁻¹ b_κ and (Ḡ + cΛ)⁻¹ b_κ, each ``(B, P)``; Ḡ_κ comes from the samples at ``members[κ]``."""
        right, positions = self._ready(right), self.rows.positions.numpy()
        own = [torch.as_tensor(np.flatnonzero(np.isin(positions, rows))) for rows in members]
        if self._tall:
            return self._solve_square_without(right, own)
        undamped = right / self.damping
        weights = self._solve_inner(self._seen_by_rows(undamped))
        starts = range(0, len(own), _CHUNK)
        parts = [
            self._without_rows(weights[:, start : start + _CHUNK], own[start : start + _CHUNK]) for start in starts
        ]
        pushed = self._pushed_by_rows(torch.cat([*parts, weights], 1))
        without, whole = (self._move(undamped, part) for part in pushed.split(len(right)))
        return without, whole

    def trials(self, pulls: Tensor, scales: Sequence[float]) -> list[Trial]:
        """What unseen rows say about each multiple in ``scales``, for pulls ``(B, P)``; the last stays set for now.

        Rows that are recomputed for every solve are recomputed once for all multiples.
        """
        if not self.cost.rows_per_solve:
            return [self._try(pulls, scale) for scale in scales]
        pulls = pulls.to(self.damping)
        undamped = pulls / self.damping
        seen, weights = self._seen_by_rows(undamped), []
        for scale in scales:
            self.set_damping(scale, final=False)
            weights.append(self._solve_inner(seen))
        pushed = self._pushed_by_rows(torch.cat(weights, 1)).view(len(scales), *pulls.shape)
        directions = pushed.div_(self.damping).neg_().add_(undamped).div_(torch.tensor(scales).to(pulls).view(-1, 1, 1))
        fitted = (directions * pulls).sum(2)
        unseen = self.unseen_quadratic(directions.flatten(0, 1)).view_as(fitted)
        return [Trial.of(*both) for both in zip(fitted, unseen, strict=True)]

    def _try(self, pulls: Tensor, scale: float) -> Trial:
        """The trial of one multiple, which fails if it is too small for the matrix to be positive definite."""
        try:
            self.set_damping(scale, final=False)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return Trial(0.0, math.inf)
        directions = self.solve(pulls)
        return Trial.of((directions * pulls).sum(1), self.unseen_quadratic(directions))

    def _ready(self, right: Tensor) -> Tensor:
        """Right-hand sides on the device and in the precision of the solve, once the matrix is factorised."""
        if self._factors is None:
            self.set_damping(self.scale)
        return right.to(self._scale)

    def _without_rows(self, weights: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Weights ``(M, B)`` of the rows, solved again without those at the numbers ``own[κ]``, whose weights become 0.

        With N the inverse of the M × M matrix, this subtracts N y, where y is zero except at ``own[κ]`` and N y agrees
        with the weights there. GMRES needs few steps, because cN differs from I by the groups' own shares only.
        """
        inside = torch.zeros(len(own), len(weights), dtype=torch.bool, device=weights.device)
        for row, numbers in zip(inside, own, strict=True):
            row[numbers] = True

        def shared(y: Tensor) -> Tensor:
            return inside * (y - self.scale * self._solve_inner(y.T).T)

        y = solve_identity_minus(shared, inside * weights.T, _KRYLOV_STEPS, _KRYLOV_RESIDUAL)
        return (weights - self.scale * self._solve_inner(y.T)) * ~inside.T

    def _solve_square_without(self, right: Tensor, own: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """``solve_without`` by GMRES, in chunks of groups: x = (Ḡ + cΛ)⁻¹ (b + Ḡ_κ x)."""
        whole, rows = self._solve_square(right), torch.cat(list(self.rows.batches()))
        parts = []
        for start in range(0, len(own), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            push = self._own_push(rows, own[chunk])
            parts.append(solve_identity_minus(push, whole[chunk], _KRYLOV_STEPS, _KRYLOV_RESIDUAL))
        return torch.cat(parts), whole

    def _own_push(self, rows: Tensor, own: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        """A function of directions d ``(B, P)`` that returns (Ḡ + cΛ)⁻¹ Ḡ_κ d_κ ``(B, P)``."""
        pairs = [(self._weighted_rows(rows[numbers], numbers), rows[numbers]) for numbers in own]

        def push(directions: Tensor) -> Tensor:
            each = [left.T @ (seen @ d) for (left, seen), d in zip(pairs, directions, strict=True)]
            return self._solve_square(torch.stack(each))

        return push

    def _weighted_rows(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """U ``(m, P)`` of rows V ``(m, P)`` with these numbers: UᵀV is their part of Ḡ."""
        return rows

    def _solve_square(self, right: Tensor, transposed: bool = False) -> Tensor:
        """(Ḡ + cΛ)⁻¹ b from the factors of the P × P matrix."""
        solved: Tensor = torch.cholesky_solve((right * self._scale).T, self._factors).T * self._scale
        return solved

    def _factorise(self, matrix: Tensor) -> Any:
        return cholesky(matrix)

    def _solve_inner(self, right: Tensor, transposed: bool = False) -> Tensor:
        """Solve with the factors of the M × M matrix."""
        solved: Tensor = torch.cholesky_solve(right.to(self._factors), self._factors)
        return solved

    def _seen_by_rows(self, undamped: Tensor, transposed: bool = False) -> Tensor:
        """RΛ⁻¹b ``(M, B)`` for Λ⁻¹b ``(B, P)``."""
        return torch.cat([rows @ undamped.T for rows in self.rows.batches()])

    def _pushed_by_rows(self, weights: Tensor, transposed: bool = False) -> Tensor:
        """Rᵀw ``(B, P)`` for weights w ``(M, B)``."""
        weights, start = weights.to(self.damping), 0
        pushed = weights.new_zeros(weights.shape[1], self.size)
        for rows in self.rows.batches():
            pushed.addmm_(weights[start : start + len(rows)].T, rows)
            start += len(rows)
        return pushed

    def _move(self, undamped: Tensor, pushed: Tensor) -> Tensor:
        """(Λ⁻¹b − Λ⁻¹Rᵀw)/c from Λ⁻¹b and Rᵀw, each ``(B, P)``; overwrites Rᵀw."""
        return pushed.div_(self.damping).neg_().add_(undamped).div_(self.scale)

    def unseen_quadratic(self, directions: Tensor) -> Tensor:
        """dᵀ(Ḡ' + Λ)d ``(B,)`` of directions ``(B, P)``, with rows that the solve has not seen."""
        total = (self.damping * directions.square()).sum(1)
        for rows in self._fresh.batches():
            total += (rows @ directions.T).square().sum(0)
        return total

    def try_rows(self) -> int:
        """Compute one batch of rows and return its size."""
        return len(next(self.rows.batches()))

    @cached_property
    def _scale(self) -> Tensor:
        """Λ^−½ ``(P,)``: after the parameters are scaled by it, the damping is 1."""
        return self.damping.rsqrt()

    @property
    def _tall(self) -> bool:
        """True if there are at least as many rows as parameters, so that the P × P matrix is the smaller one."""
        return self.size <= len(self.rows)

    @property
    def _keeps_rows(self) -> bool:
        """True if the rows stay in memory for Woodbury's identity."""
        return not self._tall and len(self._slices) == 1

    @property
    def _slices(self) -> list[slice]:
        """Slices of the parameters whose columns of R fit the memory."""
        return slices(self.size, self._memory // (len(self.rows) * self._float_bytes))

    def _gram_of_columns(self, advance: Advance) -> Tensor:
        """Λ^−½ RᵀR Λ^−½ ``(P, P)``."""
        total = torch.zeros(self.size, self.size, dtype=self._scale.dtype, device=self._scale.device)
        for rows in merge_rows(self.rows.batches(advance)):
            add_gram_of_columns(total, rows * self._scale)
        return total

    def _gram_of_rows(self, advance: Advance) -> Tensor:
        """R Λ⁻¹ Rᵀ ``(M, M)`` in double precision, because Woodbury's identity subtracts nearly equal vectors."""
        count = len(self.rows)
        total = torch.zeros(count, count, dtype=torch.float64, device=self._scale.device)
        parts = slices(self.size, max(1, MAX_FLOATS // count)) if self._keeps_rows else self._slices
        for columns in parts:
            scaled = (rows[:, columns] * self._scale[columns] for rows in self.rows.batches(advance))
            total += gram(stack_rows(scaled, count))
        return total


def affordable_rows(target: Target, samples: Samples) -> int:
    """Default M: the number of rows for which a solve stays within its budget of multiplications."""
    epochs = len(target.trajectory) - 1 if target.recipe is None else target.recipe.epochs
    return rows_for(target.flat.size, len(samples) * epochs)


def rows_for(size: int, passed: int) -> int:
    """Default M for ``size`` parameters P and a training that processed ``passed`` samples (samples × epochs).

    The solve needs MP² or M²P multiplications, whichever is less.
    """
    work = min(_SOLVE_WORK, _WORK_PER_PASS * passed * size)
    fewest = fewer_for_large(_FEWEST_ROWS, size)
    return int(min(_MOST_ROWS, max(fewest, work / size**2, (work / size) ** 0.5)))
