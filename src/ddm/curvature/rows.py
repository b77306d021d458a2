"""The curvature Ḡ of the training loss, pooled over the trajectory, and solves with it.

    Ḡ = Σ_t ω_t mean_i J_t(x_i)ᵀ H_t(x_i) J_t(x_i),    J = ∂f/∂θ,  H = ∂²L/∂f²,

the generalised Gauss–Newton matrix at the checkpoints θ_t, ω_t their share of the training's length. It is never formed
from all samples: one random row ``r = Jᵀ H^½ ε`` with signs ε a sample has E[r rᵀ] = JᵀHJ, so M rows give Ḡ ≈ RᵀR for
the price of M backward passes. Solves with ``RᵀR + Λ`` are dense: P × P where parameters are few, otherwise M × M by
Woodbury's identity, the rows made again slice by slice of the parameters where they do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.compute.progress import Advance
from ddm.curvature.gradients import output_gradients
from ddm.curvature.grams import add_gram_of_columns, cholesky, gram
from ddm.data.samples import Samples
from ddm.training.target import Loss, Target

_BATCH, NUMBERS = 64, 2**25
"""Samples whose rows are made at once, and numbers in these, at most."""

_MOST_ROWS, _FEWEST_ROWS, _LARGE = 16384, 1024, 2**20
_WORK, _WORK_PER_PASS = 2e12, 2e3
"""Rows by default: as many as a dense solve takes that makes _WORK multiplications (half a minute on a core), and no
more than _WORK_PER_PASS a parameter for each sample that the training passed (two trainings of a small network), within
these bounds, the lower one less for networks of more than _LARGE parameters; and no more than one a sample and
checkpoint."""


_FEWEST_APART = 128
"""Samples that are held out where there are fewer samples than rows; less if these are more than a fifth."""

_MOST_SLICES = 64
"""So often rows are made again at most, whatever the memory."""


class Curvature:
    """Ḡ ≈ RᵀR of a target on its training samples, with damping Λ.

    checkpoints: where it is pooled, with their weights ω ``(T,)``, Σω = 1
    damping:     λ, or one for each parameter ``(P,)``
    rows:        M, spread evenly over checkpoints; None chooses
    memory:      GiB that rows may take
    held_out:    the last so many rows of each checkpoint are of samples that its other rows are not of, which needs at
                 least 2 samples
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
        held_out: int = 0,
    ) -> None:
        self.target, self.samples, self.seed, self.memory = target, samples, seed, memory
        self.held_out = held_out
        self.checkpoints, self.weights = list(checkpoints), weights
        size = target.flat.size
        self.damping = torch.as_tensor(damping).to(target.theta).expand(size)
        wanted = rows or min(affordable(size, _passed(target, samples)), len(samples) * len(self.checkpoints))
        self.each = max(1, round(wanted / len(self.checkpoints)))
        self._kept: list[Tensor] | None = None

    @property
    def count(self) -> int:
        """M, the rows."""
        return self.each * len(self.checkpoints)

    @property
    def passes(self) -> int:
        """Rows made to prepare a solve, some of them again."""
        return self.count * (1 if self._tall else len(self._slices))

    @property
    def passes_a_solve(self) -> int:
        """Rows made again for each solve."""
        return 0 if self._tall or self.kept else 2 * self.count

    def rows(self, advance: Advance = lambda amount: None) -> Iterator[Tensor]:
        """R in parts ``(b, P)``, the same each time; kept where they fit the memory."""
        if self._kept is not None:
            yield from self._kept
            return
        parts = []
        for part in self.made(advance):
            if self.kept:
                parts.append(part)
            yield part
        self._kept = parts if self.kept else None

    def made(self, advance: Advance = lambda amount: None) -> Iterator[Tensor]:
        """The same, made anew and not kept."""
        generator = torch.Generator().manual_seed(self.seed)
        for t, weight in zip(self.checkpoints, self.weights, strict=True):
            chosen = _cycled(len(self.samples), self.each, generator)
            if self.held_out and len(self.samples) < self.each:
                chosen = _apart(chosen[: len(self.samples)], self.each - self.held_out, self.held_out)
            theta, fixed = self.target.at(t)
            for part in chosen.split(max(1, min(_BATCH, NUMBERS // self.target.flat.size))):
                x, y = (tensor.to(self.target.device) for tensor in self.samples.batch(part))
                vectors = loss_vectors(self.target.loss, self.target.flat(theta, fixed, x).detach(), y, generator)
                made = output_gradients(self.target, theta, fixed, x, vectors[:, None])[:, 0]
                yield made.mul_(float(weight / self.each) ** 0.5)
                advance(len(part))

    def prepare(self, advance: Advance = lambda amount: None) -> None:
        """Make what all solves share; ``advance`` counts rows."""
        if not hasattr(self, "_factor"):
            total = self._gram_of_columns(advance) if self._tall else self._gram_of_rows(advance)
            total.diagonal().add_(1.0)
            self._factor = cholesky(total)

    def solve(self, right: Tensor) -> Tensor:
        """(Ḡ + Λ)⁻¹ b ``(B, P)`` for right-hand sides ``(B, P)``."""
        self.prepare()
        right = right.to(self._scale)
        if self._tall:
            return torch.cholesky_solve((right * self._scale).T, self._factor).T * self._scale
        solved = right / self.damping
        inner = torch.cat([rows @ solved.T for rows in self.rows()])
        weights = torch.cholesky_solve(inner.to(self._factor), self._factor).to(solved)
        pushed, start = torch.zeros_like(solved), 0
        for rows in self.rows():
            pushed.addmm_(weights[start : start + len(rows)].T, rows)
            start += len(rows)
        return solved - pushed.div_(self.damping)

    @cached_property
    def _scale(self) -> Tensor:
        """Λ^−½ ``(P,)``: in parameters scaled by it the damping is 1."""
        return self.damping.rsqrt()

    @property
    def _tall(self) -> bool:
        return self.target.flat.size <= self.count

    @property
    def row_bytes(self) -> int:
        """Bytes that rows take."""
        return 0 if self._tall else min(self.count * self.target.flat.size * 4, int(self.memory * 2**30))

    @property
    def factor_bytes(self) -> int:
        """Bytes that solves take."""
        return 2 * (4 if self._tall else 8) * min(self.count, self.target.flat.size) ** 2

    @property
    def kept(self) -> bool:
        """Whether rows are kept: those of a P × P solve are needed once only."""
        return not self._tall and len(self._slices) == 1

    @property
    def _slices(self) -> list[slice]:
        """Parts of the parameters whose columns of R fit the memory."""
        bytes_each = self.count * self.target.theta.element_size()
        return slices(self.target.flat.size, int(self.memory * 2**30 / bytes_each))

    def _gram_of_columns(self, advance: Advance) -> Tensor:
        """Λ^−½ RᵀR Λ^−½ ``(P, P)``."""
        total = torch.zeros(len(self._scale), len(self._scale), dtype=self._scale.dtype, device=self._scale.device)
        for rows in gathered(self.rows(advance)):
            add_gram_of_columns(total, rows * self._scale)
        return total

    def _gram_of_rows(self, advance: Advance) -> Tensor:
        """R Λ⁻¹ Rᵀ ``(M, M)`` in double precision: the identity subtracts nearly equal vectors."""
        total = torch.zeros(self.count, self.count, dtype=torch.float64, device=self._scale.device)
        few = slices(self.target.flat.size, max(1, NUMBERS // self.count)) if self.kept else self._slices
        for columns in few:
            scaled = (rows[:, columns] * self._scale[columns] for rows in self.rows(advance))
            total += gram(stacked(scaled, self.count))
        return total


def affordable(size: int, passed: int) -> int:
    """Rows M by default for ``size`` parameters P and a training that ``passed`` so many samples.

    MP² or M²P, whichever the solve takes, is what is affordable.
    """
    work = min(_WORK, _WORK_PER_PASS * passed * size)
    return int(min(_MOST_ROWS, max(shrunk(_FEWEST_ROWS, size), work / size**2, (work / size) ** 0.5)))


def shrunk(rows: int, size: int) -> int:
    """Fewer rows for networks of many parameters, whose rows do not fit the memory and are made again and again."""
    return int(rows * min(1.0, _LARGE / size) ** 0.5)


def _passed(target: Target, samples: Samples) -> int:
    """Samples that the training passed forward and back, as if a checkpoint were an epoch where no recipe says."""
    return len(samples) * (len(target.trajectory) - 1 if target.recipe is None else target.recipe.epochs)


def stacked(parts: Iterable[Tensor], count: int) -> Tensor:
    """``count`` rows that come in parts, as one matrix: never held twice, unlike by ``torch.cat``."""
    total, start = torch.empty(0), 0
    for part in parts:
        if not start:
            total = part.new_empty(count, *part.shape[1:])
        total[start : start + len(part)] = part
        start += len(part)
    return total


def slices(size: int, width: int) -> list[slice]:
    """``size`` parameters in parts of at most ``width``, but no more than _MOST_SLICES parts."""
    width = max(width, -(-size // _MOST_SLICES))
    return [slice(start, start + width) for start in range(0, size, width)]


def loss_vectors(loss: Loss, logits: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """H^½ε ``(b, L)`` with random signs ε, H the Hessian of each sample's loss in its logits ``(b, L)``."""
    signs = 2.0 * torch.randint(0, 2, logits.shape, generator=generator).to(logits) - 1
    if loss is F.cross_entropy:  # H = diag(p) − ppᵀ
        p = logits.softmax(1)
        drawn = signs * p.sqrt()
        return drawn - p * drawn.sum(1, keepdim=True)
    values, vectors = torch.linalg.eigh(_hessians(loss, logits, y))
    return torch.einsum("bij,bj->bi", vectors, values.clamp(min=0).sqrt() * signs)


def _hessians(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """∂²L/∂f² ``(b, L, L)`` of each sample, for a loss that is a mean over the batch."""
    logits = logits.detach().requires_grad_()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(len(logits) * loss(logits, y), logits, create_graph=True)
        if not slopes.requires_grad:
            return torch.zeros(*logits.shape, logits.shape[1]).to(logits)
        columns = [torch.autograd.grad(slope, logits, retain_graph=True)[0] for slope in slopes.sum(0)]
    return torch.stack(columns, 1)


def _cycled(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """``wanted`` positions below ``count``, each used once before any is used again."""
    rounds = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])[:wanted]


def _apart(order: Tensor, first: int, last: int) -> Tensor:
    """``first`` of the positions in ``order (n,)`` and then ``last`` others, both repeated where there are too few.

    The others are those of ``order`` that are left after the first, but at least a fifth of all or _FEWEST_APART.
    """
    if len(order) < 2:
        return order.repeat(first + last)
    kept = max(len(order) - first, min(len(order) // 5, _FEWEST_APART), 1)
    parts = (order[:-kept], first), (order[-kept:], last)
    return torch.cat([part.repeat(-(-count // len(part)))[:count] for part, count in parts])


def gathered(parts: Iterator[Tensor], least: int = 2048) -> Iterator[Tensor]:
    """The same rows in larger parts, which products are faster with."""
    held: list[Tensor] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= least:
            yield torch.cat(held)
            held = []
    if held:
        yield torch.cat(held)
