"""Distances from images to their nearest neighbours in a set: in pixels, in features and by structural similarity.

The structural similarity (SSIM; Wang et al., 2004) of two images is the mean over 7×7 windows of

    (2μμ' + c₁)(2σ_xy + c₂) / ((μ² + μ'² + c₁)(σ² + σ'² + c₂)),    c₁ = 0.01², c₂ = 0.03² for values in 0 … 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.samples import Samples

_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2

_HIGHEST_PSNR = 99.0
"""PSNR reported for identical images, where it would be infinite."""

_BATCH = 256
"""Number of items whose distances to the whole set are computed at once."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""A distance: ``(a (m, ...), b (n, ...)) → (m, n)``."""


@dataclass(frozen=True)
class Nearest:
    """The nearest neighbour of each of m items: its distance ``(m,)`` and its position in the set ``(m,)``."""

    distance: np.ndarray
    row: np.ndarray


def find_nearest(items: Tensor, others: Tensor, measure: Measure) -> Nearest:
    """Find the nearest of ``others (n, ...)`` to each of ``items (m, ...)``."""
    minima = [measure(part, others).min(1) for part in items.split(_BATCH)]
    return Nearest(
        torch.cat([part.values for part in minima]).double().numpy(),
        torch.cat([part.indices for part in minima]).numpy(),
    )


def rms_distance(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square difference ``(m, n)`` between every ``a (m, ...)`` and every ``b (n, ...)``."""
    flat = a.flatten(1), b.flatten(1)
    exact = "donot_use_mm_for_euclid_dist"  # so that identical items have distance 0
    distances: Tensor = torch.cdist(*flat, compute_mode=exact) / flat[0].shape[1] ** 0.5
    return distances


def ssim_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 − SSIM ``(m, n)``."""
    return 1 - ssim(a, b)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity ``(m, n)`` of images ``a (m, C, H, W)`` with ``b (n, C, H, W)``, values in 0 … 1."""
    window = min(_WINDOW, *a.shape[-2:])
    unbiased = window**2 / max(window**2 - 1, 1)
    (mean_a, var_a), (mean_b, var_b) = _moments(a, window), _moments(b, window)
    rows = []
    for image, mean, var in zip(a, mean_a, var_a, strict=True):
        covariance = F.avg_pool2d(image * b, window, 1) - mean * mean_b
        top = (2 * mean * mean_b + _C1) * (2 * unbiased * covariance + _C2)
        bottom = (mean**2 + mean_b**2 + _C1) * (unbiased * (var + var_b) + _C2)
        rows.append((top / bottom).flatten(1).mean(1))
    return torch.stack(rows)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB ``(m, n)``, values in 0 … 1."""
    return (-20 * rms_distance(a, b).log10()).clamp(max=_HIGHEST_PSNR)


def to_images(samples: Samples, x: Tensor) -> Tensor:
    """Network inputs ``(n, C, ...)`` as images in 0 … 1, clamped to the range of the samples' stored values."""
    scale = 255.0 if samples.pixels.dtype == torch.uint8 else 1.0
    low, high = (0.0, 255.0) if scale > 1 else (float(samples.pixels.min()), float(samples.pixels.max()))
    shape = (1, -1, *([1] * (x.dim() - 2)))
    raw = scale * (x.cpu() * samples.std.view(shape) + samples.mean.view(shape))
    return ((raw - low) / (high - low)).clamp(0, 1)


def _moments(images: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each window."""
    mean = F.avg_pool2d(images, window, 1)
    return mean, (F.avg_pool2d(images**2, window, 1) - mean**2).clamp(min=0)
