"""The synset of responses: a few images that all groups share, and soft targets on them for each group.

One step of fine-tuning on B images x̃_b with targets q̃_κb moves the target by Σ_b J(x̃_b)ᵀ r_κb, where the residuals
r_κb = α_κ (q̃_κb − p_b) / B, p the mean of the outputs (softmax of a classifier), may have any value; of a classifier as
long as Σ_l r_κbl = 0. So for given images the best targets solve a linear least-squares problem, in closed form and for
all groups at once. They minimise, for Δ̃_κ = Σ_b J(x̃_b)ᵀ r_κb,

    ‖A(Δ̃_κ − Δ_κ)‖² + μ‖Δ̃_κ − Δ_κ‖²,    AᵀA the curvature of the training loss at θ_τ on reference inputs.

The images are called the bank. A bank of noise images can express nearly all responses, so a synset needs no training
image. The encoding error, measured by A' on inputs that the fit has not seen, decides how many images the bank has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.gradients import jacobian, together
from ddm.curvature.grams import add_gram_of_columns, cholesky, gram
from ddm.curvature.rows import CurvatureRows, fewer_for_large
from ddm.curvature.slicing import MAX_FLOATS, merge_rows, slices, stack_rows
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.distil.response.bank import draw_bank
from ddm.distil.settings import Settings
from ddm.errors import InputError
from ddm.training.target import Target

_REFERENCES, _CHECKS = 2048, 512
"""Number of rows of A, and of A'; large networks have fewer."""

_EUCLIDEAN, _RIDGE = 0.1, 1e-5
"""μ, and the ridge of the least squares, both relative to the mean of the diagonal to which they are added."""

_MIN_ROWS, _MAX_ROWS = 1024, 4096
"""Rows of J(x̃), images × classes, of the smallest and of the largest bank; large networks have fewer."""

_WORK = 3.5e11
"""Multiplications JJᵀ of the largest bank, if that has more than _MIN_ROWS rows."""

_LEAST_GROWTH = 2
"""A bank that can grow by less than this factor starts at its largest size, because growing means building it anew."""

_NEARLY_MAX = 0.9
"""A bank with at least this fraction of the maximum images does not grow, because growing means building a new bank."""


@dataclass(frozen=True)
class Encoding:
    """Residuals r ``(K, B, L)`` on the images, and the cosine of AΔ̃ and AΔ of each group ``(K,)``."""

    residuals: Tensor
    alignment: Tensor

    @property
    def error(self) -> Tensor:
        """The encoding error of each group ``(K,)``."""
        return 1 - self.alignment.square()


class Encoder:
    """Encodes responses of a target in residuals on a bank of images."""

    def __init__(self, target: Target, samples: Samples, settings: Settings) -> None:
        self.target, self.samples, self.settings = target, samples, settings
        last = [len(target.trajectory) - 1]
        self.references = fewer_for_large(_REFERENCES, target.flat.size)
        checks = fewer_for_large(_CHECKS, target.flat.size)
        self.metric = CurvatureRows(
            target, samples, last, torch.ones(1), self.references + checks, settings.seed + 1, held_out=checks
        )
        self.metric.keep = self.metric_bytes > 0
        self.classes = target.outputs(samples.batch([0])[0]).shape[1]
        self._bank: _Bank | None = None
        self._check_memory()

    @property
    def metric_bytes(self) -> int:
        """Bytes of the rows of A. 0 if they exceed a quarter of the memory, and are recomputed instead."""
        needed = len(self.metric) * self.target.flat.size * self.target.theta.element_size()
        return needed if needed <= self.settings.memory * 2**28 else 0

    def _check_memory(self) -> None:
        """Refuse a number of classes for which even the smallest bank's least squares do not fit the memory."""
        rows = self.min_images * self.classes
        wanted = least_squares_bytes(rows, len(self.metric)) / 2**30
        if rows > _MAX_ROWS and wanted > self.settings.memory:
            raise InputError(
                f"solving for the soft targets of {self.min_images} images and {self.classes:,} classes takes "
                f"{wanted:.1f} GiB, more than the setting memory={self.settings.memory:g} allows: raise it, or choose "
                "reverse matching."
            )

    @property
    def min_images(self) -> int:
        """Images of the first bank that is tried."""
        if self.settings.bank:
            return self.settings.bank
        first, last = fewer_for_large(_MIN_ROWS, self.target.flat.size), self._max_rows
        return max(2, (first if first * _LEAST_GROWTH <= last else max(first, last)) // self.classes)

    @property
    def _max_rows(self) -> int:
        """Rows of J(x̃) of the largest bank: fewer for a larger network."""
        return int(min(_MAX_ROWS, (_WORK / self.target.flat.size) ** 0.5))

    @property
    def max_images(self) -> int:
        """Images of the largest bank. A bank that does not fit the memory does not grow: its cost is quadratic."""
        grows = self.settings.bank is None and len(self.slices(self.min_images)) == 1
        return max(self.min_images, self._max_rows // self.classes) if grows else self.min_images

    def slices(self, count: int) -> list[slice]:
        """Slices of the parameters, such that the columns of J for ``count`` images fit half of the memory."""
        bytes_each = count * self.classes * self.target.theta.element_size()
        return slices(self.target.flat.size, int(self.settings.memory * 2**29 / bytes_each))

    @property
    def rows(self) -> int:
        """Backward passes for the largest bank, recomputations included."""
        return (self.max_images * self.classes + len(self.metric)) * len(self.slices(self.min_images))

    def choose(
        self, responses: Tensor, advance: Advance = lambda amount: None, judged: int | None = None
    ) -> tuple[X, Encoding]:
        """The smallest bank ``(B, ...)`` that encodes responses ``(K, P)`` within the tolerance, and the encoding.

        A bank size in the settings overrides the choice. Only the first ``judged`` responses must meet the tolerance
        (default: all). ``advance`` counts rows.
        """
        count = self.min_images
        while True:
            images = draw_bank(self.samples, count, self.settings.seed, self.settings.start_images).to(
                self.target.theta
            )
            encoding = self.encode(images, responses, advance)
            excess = float(encoding.error[:judged].mean()) / self.settings.tolerance
            if excess <= 1 or count >= _NEARLY_MAX * self.max_images:
                return images, encoding
            count = min(math.ceil(count * min(max(excess, 1.5), 4)), self.max_images)

    def encode(self, images: X, responses: Tensor, advance: Advance = lambda amount: None) -> Encoding:
        """The residuals that come closest to responses ``(K, P)``, on images ``(B, ...)``; ``advance`` counts rows."""
        bank = self._bank_for(images, advance)
        inner = _products(self._jacobians(bank), responses)
        wanted = _products(self.metric.batches(), responses)
        fit, check = slice(None, self.references), slice(self.references, None)
        right = bank.seen[fit].T @ wanted[fit] + self._mu(bank) * inner
        residuals = torch.cholesky_solve(right, bank.factor)
        alignment = torch.cosine_similarity(bank.seen[check] @ residuals, wanted[check], dim=0)
        residuals = residuals.T.reshape(len(responses), len(images), self.classes)
        if self.target.task.zero_sum:
            residuals = residuals - residuals.mean(2, keepdim=True)  # J minus its mean gives the same step
        return Encoding(residuals.to(responses), alignment.to(responses))

    def _bank_for(self, images: X, advance: Advance) -> _Bank:
        """The bank of these images, built once for all responses."""
        if self._bank is None or self._bank.images is not images:
            self._bank = None  # frees the memory first: two banks may not fit
            self._bank = self._build_bank(images, advance)
        return self._bank

    def _build_bank(self, images: X, advance: Advance) -> _Bank:
        """Sum the products over slices of the parameters, so that J fits half of the memory."""
        size = len(images) * self.classes
        bank = _Bank.empty(images, size, len(self.metric))
        parts = self.slices(len(images))
        for columns in parts:
            jacobian = stack_rows((part[:, columns] for part in self._jacobians(bank, advance)), size)
            metric = (
                part[:, columns].contiguous() for part in self.metric.batches(advance)
            )  # a view would keep all columns in memory
            bank.add(jacobian, merge_rows(metric, MAX_FLOATS // jacobian.shape[1]), self.references)
        if len(parts) == 1:
            bank.jacobian = jacobian
        bank.factorise(self._mu(bank), self.references)
        return bank

    def _mu(self, bank: _Bank) -> float:
        return _EUCLIDEAN * bank.trace / self.target.flat.size

    def _jacobians(self, bank: _Bank, advance: Advance = lambda amount: None) -> Iterator[Tensor]:
        """J(x̃) in parts ``(b·L, P)``; of a classifier minus its mean over classes, because residuals sum to 0."""
        if bank.jacobian is not None:
            yield bank.jacobian
            return
        for part in bank.images.split(together(self.target, self.classes)):
            rows = jacobian(self.target, self.target.theta, self.target.fixed, part)
            if self.target.task.zero_sum:
                rows -= rows.mean(1, keepdim=True)
            yield rows.flatten(0, 1)
            advance(len(part) * self.classes)


@dataclass
class _Bank:
    """Images with the products that the encodings of all responses share, in double precision.

    factor:   JJᵀ ``(BL, BL)``; after ``factorise`` the lower Cholesky factor of JAᵀAJᵀ + μJJᵀ + ridge
    seen:     AJᵀ ``(M, BL)`` for the rows of A, followed by those of A'
    trace:    trace of AᵀA
    jacobian: J ``(BL, P)``, or None if it does not fit the memory
    """

    images: X
    factor: Tensor
    seen: Tensor
    trace: float = 0.0
    jacobian: Tensor | None = None

    @classmethod
    def empty(cls, images: X, size: int, rows: int) -> _Bank:
        """A bank whose products are still zero."""
        zeros = partial(torch.zeros, dtype=torch.float64)
        return cls(images, zeros(size, size), zeros(rows, size))

    def add(self, jacobian: Tensor, metric: Iterator[Tensor], references: int) -> None:
        """Add the products over a slice of w parameters, from J ``(BL, w)`` and rows of A in batches ``(b, w)``."""
        self.factor += gram(jacobian).cpu().double()
        start = 0
        for part in metric:
            self.seen[start : start + len(part)] += (part @ jacobian.T).cpu().double()
            self.trace += float(part[: max(0, references - start)].square().sum())
            start += len(part)

    def factorise(self, mu: float, references: int) -> None:
        """Replace JJᵀ by the Cholesky factor of the least squares, after all slices were added."""
        self.factor *= mu
        add_gram_of_columns(self.factor, self.seen[:references])
        self.factor.diagonal().add_(_RIDGE * self.factor.diagonal().mean())
        self.factor = cholesky(self.factor)


def least_squares_bytes(rows: int, seen: int) -> int:
    """Bytes of the least squares for ``rows`` rows of J and ``seen`` rows of A: JJᵀ in both precisions, and AJᵀ."""
    return rows * (12 * rows + 8 * seen)


def _products(parts: Iterator[Tensor], responses: Tensor) -> Tensor:
    """Products ``(M, K)`` of rows, which arrive in parts ``(b, P)``, with responses ``(K, P)``; double precision."""
    return torch.cat([(part @ responses.T).cpu().double() for part in parts])
