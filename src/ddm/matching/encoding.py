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

import numpy as np
import torch
from torch import Tensor

from ddm.curvature import Curvature, slices
from ddm.datasets.samples import Samples
from ddm.gradients import jacobian, together
from ddm.matching.settings import Settings
from ddm.target import Target

_REFERENCES, _CHECKS = 2048, 512
"""Rows of A, and of A' that checks it."""

_EUCLIDEAN, _RIDGE = 0.1, 1e-5
"""μ, and the ridge of the least squares, each relative to the mean of the diagonal that it is added to."""

_FIRST, _MOST = 1024, 4096
"""Rows of J(x̃), images × classes, that a bank starts with and may grow to."""


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
        rows = _REFERENCES + _CHECKS
        self.metric = Curvature(target, samples, last, torch.ones(1), 1.0, rows, settings.memory / 4, settings.seed + 1)
        self.classes = target.outputs(samples.batch([0])[0]).shape[1]

    def choose(self, responses: Tensor) -> tuple[Tensor, Encoding]:
        """As few images ``(B, ...)`` as encode responses ``(K, P)`` well enough, or as many as are asked for."""
        count = self.settings.bank or max(2, _FIRST // self.classes)
        while True:
            images = self.images(count)
            encoding = self.encode(images, responses)
            excess = float(encoding.error.mean()) / self.settings.tolerance
            if self.settings.bank or excess <= 1 or count >= _MOST // self.classes:
                return images, encoding
            count = min(math.ceil(count * min(max(excess, 1.2), 2)), max(2, _MOST // self.classes))

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

    def encode(self, images: Tensor, responses: Tensor) -> Encoding:
        """The residuals that come closest to responses ``(K, P)``, on images ``(B, ...)``."""
        products = self._products(images, responses)
        fit, check = slice(None, _REFERENCES), slice(_REFERENCES, None)
        seen, wanted = products.seen[fit], products.wanted[fit]
        mu = _EUCLIDEAN * float(products.trace) / self.target.flat.size
        gram = seen.T @ seen + mu * products.gram
        gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
        residuals = torch.linalg.solve(gram, seen.T @ wanted + mu * products.inner)
        alignment = torch.cosine_similarity(products.seen[check] @ residuals, products.wanted[check], dim=0)
        residuals = residuals.T.reshape(len(responses), len(images), self.classes)
        residuals = residuals - residuals.mean(2, keepdim=True)  # all the same to J less its mean
        return Encoding(residuals.to(responses), alignment.to(responses))

    def _products(self, images: Tensor, responses: Tensor) -> _Products:
        """Inner products over the parameters, taken slice by slice so that J fits half of the memory."""
        size, rows = len(images) * self.classes, self.metric.count
        width = int(self.settings.memory * 2**29 / (size * self.target.theta.element_size()))
        total = _Products.zeros(size, rows, len(responses))
        for columns in slices(self.target.flat.size, width):
            total.add(
                torch.cat([part[:, columns] for part in self._jacobians(images)]),
                (part[:, columns] for part in self.metric.rows()),
                responses[:, columns],
            )
        return total

    def _jacobians(self, images: Tensor) -> Iterator[Tensor]:
        """J(x̃) in parts ``(b·L, P)``, less its mean over classes: residuals that sum to 0 see no more of it."""
        for part in images.split(together(self.target, self.classes)):
            found = jacobian(self.target, self.target.theta, self.target.fixed, part)
            yield (found - found.mean(1, keepdim=True)).flatten(0, 1)


@dataclass
class _Products:
    """gram = JJᵀ, inner = JΔᵀ, seen = AJᵀ, wanted = AΔᵀ and the trace of the fit's AᵀA, in double precision."""

    gram: Tensor
    inner: Tensor
    seen: Tensor
    wanted: Tensor
    trace: Tensor

    @classmethod
    def zeros(cls, size: int, rows: int, groups: int) -> _Products:
        shapes = (size, size), (size, groups), (rows, size), (rows, groups), ()
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, jacobian: Tensor, metric: Iterator[Tensor], responses: Tensor) -> None:
        """The part of some parameters: J ``(BL, w)``, rows of A ``(b, w)`` in turn and Δ ``(K, w)``."""
        self.gram += (jacobian @ jacobian.T).cpu().double()
        self.inner += (jacobian @ responses.T).cpu().double()
        start = 0
        for part in metric:
            rows = slice(start, start + len(part))
            self.seen[rows] += (part @ jacobian.T).cpu().double()
            self.wanted[rows] += (part @ responses.T).cpu().double()
            self.trace += part[: max(0, _REFERENCES - start)].square().sum().cpu()
            start += len(part)
