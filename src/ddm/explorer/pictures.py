"""Images enlarged without smoothing, so that small ones can be seen on the page."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ddm.plots.html import data_uri

SIDE = 96
"""Approximate pixels of the longer side."""


def enlarge(raw: Tensor) -> np.ndarray:
    """Enlarge a stored image ``(C, H, W)`` to ``(h, w)`` or ``(h, w, 3)`` uint8."""
    image = raw if raw.shape[0] == 3 else raw[:1]
    if image.dtype != torch.uint8:
        low, high = image.min(), image.max()
        image = ((image - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    times = max(1, SIDE // max(image.shape[1:]))
    enlarged: np.ndarray = image.repeat_interleave(times, 1).repeat_interleave(times, 2).permute(1, 2, 0).numpy()
    return enlarged if enlarged.shape[2] == 3 else enlarged[..., 0]


def inline_png(raw: Tensor) -> str:
    """The enlarged image as a data URI."""
    return data_uri(Image.fromarray(enlarge(raw)))
