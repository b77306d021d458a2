"""Mean and standard deviation of stored values per channel, by which inputs are normalised."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def moments(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel ``(C,)``; a constant channel keeps std 1."""
    scale = 255.0 if raw.dtype == torch.uint8 else 1.0
    count = raw.numel() // raw.shape[1]
    mean = torch.zeros(raw.shape[1], dtype=torch.float64)
    for values in _by_channel(raw):
        mean += values.sum(1) / count
    variance = torch.zeros_like(mean)
    for values in _by_channel(raw):
        variance += (values - mean[:, None]).square().sum(1) / count
    std = variance.sqrt()
    # A standard deviation below the rounding errors of float32 is noise.
    std[std <= 1e-6 * mean.abs()] = scale
    return (mean / scale).float(), (std / scale).float()


def _by_channel(raw: Tensor) -> Iterator[Tensor]:
    """Stored values as float64 ``(C, ...)``, a few megabytes at a time."""
    step = max(1, 2**20 // raw[0].numel())
    for start in range(0, len(raw), step):
        yield raw[start : start + step].to(torch.float64).transpose(0, 1).flatten(1)
