"""How near images come to those of a set: in pixels, in the target's features, by structural similarity.

Structural similarity (Wang et al., 2004) of two images is the mean over 7×7 windows of

    (2μμ' + c₁)(2σ_xy + c₂) / ((μ² + μ'² + c₁)(σ² + σ'² + c₂)),    c₁ = 0.01², c₂ = 0.03² for values in 0 … 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.datasets.samples import Samples

_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2

_LARGEST = 99.0
"""PSNR of images that are the same."""

_BATCH = 256
"""Things whose distances to all others are held at once."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""``(a (m, ...), b (n, ...)) → (m, n)``, small where near."""


@dataclass(frozen=True)
class Nearest:
    """How far the nearest of a set is from each of m things ``(m,)``, and its position ``(m,)``."""

    distance: np.ndarray
    row: np.ndarray


def nearest(things: Tensor, others: Tensor, measure: Measure) -> Nearest:
    """The nearest of ``others (n, ...)`` to each of ``things (m, ...)``."""
    found = [measure(part, others).min(1) for part in things.split(_BATCH)]
    return Nearest(
        torch.cat([part.values for part in found]).double().numpy(), torch.cat([part.indices for part in found]).numpy()
    )


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square difference ``(m, n)`` of every ``a (m, ...)`` from every ``b (n, ...)``."""
    flat = a.flatten(1), b.flatten(1)
    exact = "donot_use_mm_for_euclid_dist"  # 0 for what is the same
    distances: Tensor = torch.cdist(*flat, compute_mode=exact) / flat[0].shape[1] ** 0.5
    return distances


def unlike(a: Tensor, b: Tensor) -> Tensor:
    """1 − SSIM ``(m, n)``."""
    return 1 - ssim(a, b)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity ``(m, n)`` of images ``a (m, C, H, W)`` with ``b (n, C, H, W)``, values in 0 … 1."""
    window = min(_WINDOW, *a.shape[-2:])
    unbiased = window**2 / max(window**2 - 1, 1)
    (mean_a, var_a), (mean_b, var_b) = _moments(a, window), _moments(b, window)
    rows = []
    for image, mean, var in zip(a, mean_a, var_a, strict=True):
        both = F.avg_pool2d(image * b, window, 1) - mean * mean_b
        top = (2 * mean * mean_b + _C1) * (2 * unbiased * both + _C2)
        bottom = (mean**2 + mean_b**2 + _C1) * (unbiased * (var + var_b) + _C2)
        rows.append((top / bottom).flatten(1).mean(1))
    return torch.stack(rows)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB ``(m, n)``, values in 0 … 1."""
    return (-20 * apart(a, b).log10()).clamp(max=_LARGEST)


def pictures(samples: Samples, x: Tensor) -> Tensor:
    """Inputs ``(n, C, ...)`` as pictures in 0 … 1, by the range of the samples' stored values; cut off beyond it."""
    scale = 255.0 if samples.raw.dtype == torch.uint8 else 1.0
    low, high = (0.0, 255.0) if scale > 1 else (float(samples.raw.min()), float(samples.raw.max()))
    shape = (1, -1, *([1] * (x.dim() - 2)))
    raw = scale * (x.cpu() * samples.std.view(shape) + samples.mean.view(shape))
    return ((raw - low) / (high - low)).clamp(0, 1)


def _moments(images: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of every window."""
    mean = F.avg_pool2d(images, window, 1)
    return mean, (F.avg_pool2d(images**2, window, 1) - mean**2).clamp(min=0)
