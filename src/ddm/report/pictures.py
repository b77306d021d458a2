"""Pictures as PNG data URIs, few and small enough that a page stays below its size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ddm.data.samples import Samples
from ddm.plots.html import data_uri

BUDGET = 4_000_000
"""Characters that all pictures of a page may take."""

SIDE, SMALL = 64, 32
"""Pixels that a picture, and a thumbnail, may have in height and width; larger ones are averaged down."""


class Pictures:
    """Pictures of samples, as long as there is room for them.

    shown: whether samples may be shown at all: they are images, and the user does not mind
    """

    def __init__(self, samples: Samples, wanted: bool, budget: int = BUDGET) -> None:
        self.images = is_image(samples.shape)
        self.shown = self.images and wanted
        self.left = budget
        self._stretch = _range(samples)

    def of(self, samples: Samples, rows: Sequence[int], side: int = SIDE) -> list[str]:
        """A data URI for each of some samples: none where they are not to be shown, fewer where room is short."""
        if not self.shown or not len(rows):
            return []
        low, high = self._stretch
        raw = samples.raw[np.asarray(rows)].float()
        return self._kept([_png(_smaller(image, side), low, high) for image in raw])

    def synthetic(self, images: Tensor, side: int = SIDE) -> list[str]:
        """Data URIs of synthetic images ``(b, C, H, W)``, each scaled to its own range."""
        if not self.images:
            return []
        pictures = [_smaller(image.detach().cpu().float(), side) for image in images]
        return self._kept([_png(one, float(one.min()), float(one.max())) for one in pictures])

    def room(self, shape: tuple[int, ...], side: int = SIDE) -> int:
        """How many more pictures of samples of this shape certainly fit."""
        if not self.shown:
            return 0
        height, width = _fitted(shape[1], shape[2], side)
        worst = height * (width * shape[0] + 1) * 1.01 + 200  # what PNG makes of noise, with its headers
        return max(0, int(self.left / (worst * 4 / 3)))

    def _kept(self, pictures: list[str]) -> list[str]:
        kept = []
        for picture in pictures:
            if len(picture) > self.left:
                break
            self.left -= len(picture)
            kept.append(picture)
        return kept


def strip(values: np.ndarray) -> str:
    """Signed values ``(rows, columns)`` as a picture of a pixel each, fainter towards 0, for any background."""
    size = max(float(np.quantile(np.abs(values), 0.98)), 1e-12)
    pixels = np.empty((*values.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.where(values[..., None] > 0, _RAISES, _LOWERS)
    pixels[..., 3] = np.rint(255 * np.clip(np.abs(values) / size, 0, 1))
    return data_uri(Image.fromarray(pixels, "RGBA"))


_RAISES, _LOWERS = np.array([30, 130, 200]), np.array([223, 110, 20])
"""The colours of ``ddm.plots``, between those of a light and of a dark page."""


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape can be looked at."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def _range(samples: Samples) -> tuple[float, float]:
    """What is black and what is white."""
    if samples.raw.is_floating_point():
        return float(samples.raw.min()), float(samples.raw.max())
    return 0.0, 255.0


def _smaller(image: Tensor, side: int) -> Tensor:
    """An image ``(C, H, W)`` averaged down to at most ``side`` pixels each way."""
    height, width = _fitted(image.shape[1], image.shape[2], side)
    return image if height == image.shape[1] else F.interpolate(image[None], (height, width), mode="area")[0]


def _fitted(height: int, width: int, side: int) -> tuple[int, int]:
    shrink = min(1.0, side / max(height, width))
    return max(1, round(height * shrink)), max(1, round(width * shrink))


def _png(image: Tensor, low: float, high: float) -> str:
    """An image ``(C, H, W)`` as a data URI."""
    pixels = ((image - low) / max(high - low, 1e-12)).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    return data_uri(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]))
