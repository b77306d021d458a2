"""The synset of responses: a few images that all groups share, and soft targets on them for each group.

One step of fine-tuning on B images x̃_b with targets q̃_κb moves the target by Σ_b J(x̃_b)ᵀ r_κb, where the residuals
r_κb = α_κ (q̃_κb − p_b) / B, p = softmax(f), are free but for Σ_l r_κbl = 0. So for given images the best targets are a
linear least-squares problem, solved in closed form for all groups at once, in function space: what is least is

    ‖A(Δ̃_κ − Δ_κ)‖² + μ‖Δ̃_κ − Δ_κ‖²,    AᵀA the curvature of the training loss at θ_τ on reference inputs.

A bank of noise images spans nearly all that responses need, so that a synset holds no training image. The encoding
error ‖A'(Δ̃ − Δ)‖² / ‖A'Δ‖² on reference inputs that the fit has not seen decides how many images there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.curvature.gradients import jacobian, together
from ddm.curvature.grams import add_gram_of_columns, cholesky, gram
from ddm.curvature.rows import CurvatureRows, fewer_for_large
from ddm.curvature.slicing import MAX_FLOATS, merge_rows, slices, stack_rows
from ddm.data.samples import Samples
from ddm.distil.settings import Settings
from ddm.errors import InputError
from ddm.training.target import Target

_REFERENCES, _CHECKS = 2048, 512
"""Rows of A, and of A' that checks it; fewer for networks of many parameters."""

_EUCLIDEAN, _RIDGE = 0.1, 1e-5
"""μ, and the ridge of the least squares, each relative to the mean of the diagonal that it is added to."""

_FIRST, _MOST = 1024, 4096
"""Rows of J(x̃), images × classes, that a bank starts with and may grow to; fewer likewise."""

_NEARLY = 0.9
"""A bank of so many of the images that it may have does not grow any more."""


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
        """Memory of the rows of A, which are kept where they fit a quarter of the memory, and recomputed otherwise."""
        needed = len(self.metric) * self.target.flat.size * self.target.theta.element_size()
        return needed if needed <= self.settings.memory * 2**28 else 0

    def _check_memory(self) -> None:
        """Refuse so many classes that the least squares do not fit the memory, whatever the bank."""
        rows = self.min_images * self.classes
        wanted = least_squares_bytes(rows, len(self.metric)) / 2**30
        if rows > _MOST and wanted > self.settings.memory:
            raise InputError(
                f"solving for the soft targets of {self.min_images} images and {self.classes:,} classes takes "
                f"{wanted:.1f} GiB, more than the setting memory={self.settings.memory:g} allows: raise it, or choose "
                "reverse matching."
            )

    @property
    def min_images(self) -> int:
        """Images that a bank starts with."""
        return self.settings.bank or max(2, fewer_for_large(_FIRST, self.target.flat.size) // self.classes)

    @property
    def max_images(self) -> int:
        """Images that it may grow to; one that does not fit the memory does not, as its cost grows with its square."""
        grows = self.settings.bank is None and len(self.slices(self.min_images)) == 1
        return max(self.min_images, _MOST // self.classes) if grows else self.min_images

    def slices(self, count: int) -> list[slice]:
        """Parts of the parameters whose columns of J, of ``count`` images, fit half of the memory."""
        bytes_each = count * self.classes * self.target.theta.element_size()
        return slices(self.target.flat.size, int(self.settings.memory * 2**29 / bytes_each))

    @property
    def rows(self) -> int:
        """Backward passes for a bank that grows as far as it may, recomputations included."""
        return (self.max_images * self.classes + len(self.metric)) * len(self.slices(self.min_images))

    def choose(self, responses: Tensor, advance: Advance = lambda amount: None) -> tuple[Tensor, Encoding]:
        """As few images ``(B, ...)`` as encode responses ``(K, P)`` well enough, or as many as are asked for.

        ``advance`` counts rows.
        """
        count = self.min_images
        while True:
            images = self.images(count)
            encoding = self.encode(images, responses, advance)
            excess = float(encoding.error.mean()) / self.settings.tolerance
            if excess <= 1 or count >= _NEARLY * self.max_images:
                return images, encoding
            count = min(math.ceil(count * min(max(excess, 1.5), 4)), self.max_images)

    def images(self, count: int) -> Tensor:
        """Noise, or training samples of all classes in turn ``(count, ...)``."""
        seed = self.settings.seed
        if self.settings.start_images == "noise":
            drawn = torch.randn(count, *self.samples.shape, generator=torch.Generator().manual_seed(seed))
        else:
            rng, labels = np.random.default_rng(seed), self.samples.labels.numpy()
            orders = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
            turns = [order[turn % len(order)] for turn in range(-(-count // len(orders))) for order in orders]
            drawn = self.samples.batch(np.array(turns[:count]))[0]
        return drawn.to(self.target.theta)

    def encode(self, images: Tensor, responses: Tensor, advance: Advance = lambda amount: None) -> Encoding:
        """The residuals that come closest to responses ``(K, P)``, on images ``(B, ...)``; ``advance`` counts rows."""
        bank = self._bank_of(images, advance)
        inner = _products(self._jacobians(bank), responses)
        wanted = _products(self.metric.batches(), responses)
        fit, check = slice(None, self.references), slice(self.references, None)
        right = bank.seen[fit].T @ wanted[fit] + self._mu(bank) * inner
        residuals = torch.cholesky_solve(right, bank.factor)
        alignment = torch.cosine_similarity(bank.seen[check] @ residuals, wanted[check], dim=0)
        residuals = residuals.T.reshape(len(responses), len(images), self.classes)
        residuals = residuals - residuals.mean(2, keepdim=True)  # all the same to J less its mean
        return Encoding(residuals.to(responses), alignment.to(responses))

    def _bank_of(self, images: Tensor, advance: Advance) -> _Bank:
        """The bank of images, made once for all responses."""
        if self._bank is None or self._bank.images is not images:
            self._bank = None  # before the next one is made: two may not fit the memory
            self._bank = self._made(images, advance)
        return self._bank

    def _made(self, images: Tensor, advance: Advance) -> _Bank:
        """Products over the parameters, taken slice by slice so that J fits half of the memory."""
        size = len(images) * self.classes
        bank = _Bank.empty(images, size, len(self.metric))
        parts = self.slices(len(images))
        for columns in parts:
            jacobian = stack_rows((part[:, columns] for part in self._jacobians(bank, advance)), size)
            metric = (part[:, columns].contiguous() for part in self.metric.batches(advance))  # a view keeps it all
            bank.add(jacobian, merge_rows(metric, MAX_FLOATS // jacobian.shape[1]), self.references)
        if len(parts) == 1:
            bank.jacobian = jacobian
        bank.factorise(self._mu(bank), self.references)
        return bank

    def _mu(self, bank: _Bank) -> float:
        return _EUCLIDEAN * bank.trace / self.target.flat.size

    def _jacobians(self, bank: _Bank, advance: Advance = lambda amount: None) -> Iterator[Tensor]:
        """J(x̃) in parts ``(b·L, P)``, less its mean over classes: residuals that sum to 0 see no more of it."""
        if bank.jacobian is not None:
            yield bank.jacobian
            return
        for part in bank.images.split(together(self.target, self.classes)):
            found = jacobian(self.target, self.target.theta, self.target.fixed, part)
            found -= found.mean(1, keepdim=True)
            yield found.flatten(0, 1)
            advance(len(part) * self.classes)


@dataclass
class _Bank:
    """Images with what the encodings of all responses share, in double precision.

    factor:   at first JJᵀ ``(BL, BL)``, then the lower factor of JAᵀAJᵀ + μJJᵀ with its ridge
    seen:     AJᵀ ``(M, BL)`` of all M rows of A, those that check it last
    trace:    of AᵀA without these
    jacobian: J ``(BL, P)`` itself, where it fits the memory
    """

    images: Tensor
    factor: Tensor
    seen: Tensor
    trace: float = 0.0
    jacobian: Tensor | None = None

    @classmethod
    def empty(cls, images: Tensor, size: int, rows: int) -> _Bank:
        """A bank that nothing was added to yet."""
        zeros = partial(torch.zeros, dtype=torch.float64)
        return cls(images, zeros(size, size), zeros(rows, size))

    def add(self, jacobian: Tensor, metric: Iterator[Tensor], references: int) -> None:
        """The part of some parameters: J ``(BL, w)``, and rows of A ``(b, w)`` in turn."""
        self.factor += gram(jacobian).cpu().double()
        start = 0
        for part in metric:
            self.seen[start : start + len(part)] += (part @ jacobian.T).cpu().double()
            self.trace += float(part[: max(0, references - start)].square().sum())
            start += len(part)

    def factorise(self, mu: float, references: int) -> None:
        """When all was added: what the least squares of all responses share, in the backend of JJᵀ."""
        self.factor *= mu
        add_gram_of_columns(self.factor, self.seen[:references])
        self.factor.diagonal().add_(_RIDGE * self.factor.diagonal().mean())
        self.factor = cholesky(self.factor)


def least_squares_bytes(rows: int, seen: int) -> int:
    """Bytes of the least squares of so many rows, those seen by A in them, with JJᵀ in single precision on its way."""
    return rows * (12 * rows + 8 * seen)


def _products(parts: Iterator[Tensor], responses: Tensor) -> Tensor:
    """Rows ``(b, P)`` in parts times responses ``(K, P)``: ``(M, K)`` in double precision."""
    return torch.cat([(part @ responses.T).cpu().double() for part in parts])
