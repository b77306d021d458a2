"""The curvature from sampled rows, for an optimizer that gives each parameter and checkpoint a weight of its own.

The matrix Λ + Σ_t ω_t ∘ G_t (``ddm.curvature.step_weights``) is not symmetric. With rows V that estimate the G_t and
U = ω ∘ V, each row weighted by its checkpoint, it is Λ + UᵀV, and Woodbury's identity needs one M × M matrix for any
multiple c of the damping:

    (cΛ + UᵀV)⁻¹ b = (b − Uᵀ (cI + VΛ⁻¹Uᵀ)⁻¹ VΛ⁻¹b) / (cΛ).

With fewer parameters than rows the solve factorises the P × P matrix itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.grams import add_gram_of_columns
from ddm.curvature.rows import CurvatureRows
from ddm.curvature.sampled import SampledCurvature
from ddm.curvature.slicing import MAX_FLOATS, stack_rows
from ddm.curvature.step_weights import StepWeights
from ddm.data.samples import Samples
from ddm.training.target import Target


class PreconditionedCurvature(SampledCurvature):
    """Σ_t ω_t ∘ G_t ≈ UᵀV of a target on its training samples, with damping Λ.

    weights: W_t of the checkpoints; the other arguments are those of ``SampledCurvature``
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        checkpoints: Sequence[int],
        weights: StepWeights,
        damping: float | Tensor,
        rows: int | None = None,
        memory: float = 2.0,
        seed: int = 0,
    ) -> None:
        super().__init__(target, samples, checkpoints, torch.ones(len(checkpoints)), damping, rows, memory, seed)
        self._target, self._weights = target, weights
        self._total = weights.total(target)
        self._shares: dict[int, Tensor] = {}

    def prepare(self, advance: Advance = lambda amount: None) -> None:
        """Compute the matrix that all solves share; ``advance`` counts rows."""
        if self._matrix is None and self._factors is None:
            self._matrix = self._square(advance) if self._tall else self._inner(advance)

    def _factorise(self, matrix: Tensor) -> Any:
        return torch.linalg.lu_factor(matrix)

    def _solve_square(self, right: Tensor, transposed: bool = False) -> Tensor:
        """(cΛ + UᵀV)⁻¹ b from the factors of cI + Λ⁻¹UᵀV."""
        if transposed:
            return self._solve_inner(right.T, transposed).to(right).T / self.damping
        return self._solve_inner((right / self.damping).T).to(right).T

    def _solve_inner(self, right: Tensor, transposed: bool = False) -> Tensor:
        factors, pivots = self._factors
        solved: Tensor = torch.linalg.lu_solve(factors, pivots, right.to(factors), adjoint=transposed)
        return solved

    def _seen_by_rows(self, undamped: Tensor, transposed: bool = False) -> Tensor:
        """VΛ⁻¹b ``(M, B)`` for Λ⁻¹b ``(B, P)``; transposed, U takes the place of V."""
        return torch.cat(
            [rows @ ((share * undamped) if transposed else undamped).T for share, rows in self._weighted(self.rows)]
        )

    def _pushed_by_rows(self, weights: Tensor, transposed: bool = False) -> Tensor:
        """Uᵀw ``(B, P)`` for weights w ``(M, B)``; transposed, V takes the place of U."""
        weights, start = weights.to(self.damping), 0
        pushed = weights.new_zeros(weights.shape[1], self.size)
        for share, rows in self._weighted(self.rows):
            back = weights[start : start + len(rows)].T @ rows
            pushed += back if transposed else back.mul_(share)
            start += len(rows)
        return pushed

    def _weighted_rows(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """U = ω ∘ V ``(m, P)`` of rows V ``(m, P)`` with these numbers."""
        weighted, positions = rows.clone(), numbers // self.rows.per_checkpoint
        for position in positions.unique().tolist():
            weighted[positions == position] *= self._share(position)
        return weighted

    def unseen_quadratic(self, directions: Tensor) -> Tensor:
        """dᵀ(Λ + U'ᵀV')d ``(B,)`` of directions ``(B, P)``, with rows that the solve has not seen.

        U'ᵀV' is not symmetric, so with few rows its part can come out negative. It then counts as 0.
        """
        seen = directions.new_zeros(len(directions))
        for share, rows in self._weighted(self._fresh):
            seen += ((rows @ (share * directions).T) * (rows @ directions.T)).sum(0)
        return (self.damping * directions.square()).sum(1) + seen.clamp(min=0)

    def _share(self, position: int) -> Tensor:
        """ω_t ``(P,)`` of the checkpoint at this position, from memory if the shares of all checkpoints are small."""
        if position in self._shares:
            return self._shares[position]
        share = self._weights.at(self._target, position).to(self._total) / self._total
        if len(self.rows.checkpoints) * self.size <= MAX_FLOATS:
            self._shares[position] = share
        return share

    def _weighted(self, rows: CurvatureRows, advance: Advance = lambda amount: None) -> Iterator[tuple[Tensor, Tensor]]:
        """ω_t ``(P,)`` and batches of rows ``(b, P)``. No batch has rows of two checkpoints."""
        count, position, share = 0, -1, torch.empty(0)
        for batch in rows.batches(advance):
            if count // rows.per_checkpoint != position:
                position = count // rows.per_checkpoint
                share = self._share(position)
            yield share, batch
            count += len(batch)

    def _square(self, advance: Advance) -> Tensor:
        """Λ⁻¹UᵀV ``(P, P)``: the sum over checkpoints of VᵀV with its rows weighted by Λ⁻¹ω_t.

        VᵀV is symmetric, so its lower half is enough. Columns weighted instead of rows give the upper half, transposed.
        """
        lower, upper, product = (self.damping.new_zeros(self.size, self.size) for _ in range(3))
        plain = torch.cat(list(self.rows.batches(advance)))
        for position, rows in enumerate(plain.split(self.rows.per_checkpoint)):
            add_gram_of_columns(product.zero_(), rows)
            weight = self._share(position) / self.damping
            lower.addcmul_(product, weight[:, None])
            upper.addcmul_(product, weight)
        return lower.tril_().add_(upper.tril_(-1).T)

    def _inner(self, advance: Advance) -> Tensor:
        """VΛ⁻¹Uᵀ ``(M, M)`` in double precision, because Woodbury's identity subtracts nearly equal vectors."""
        count, each = len(self.rows), self.rows.per_checkpoint
        total = torch.zeros(count, count, dtype=torch.float64, device=self.damping.device)
        for columns in self._slices:
            plain = stack_rows((rows[:, columns] for rows in self.rows.batches(advance)), count)
            for position, start in enumerate(range(0, count, each)):
                weight = (self._share(position) / self.damping)[columns]
                total[:, start : start + each] += (plain @ (plain[start : start + each] * weight).T).double()
        return total
