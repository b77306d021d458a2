"""Pictures as PNG data URIs, within a limit on the size of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ddm.data.inputs import tensor_of
from ddm.data.reading import Reading
from ddm.data.samples import Samples
from ddm.data.shown import is_image
from ddm.plots.html import data_uri

BUDGET = 4_000_000
"""Maximum characters of all pictures of a page."""

SIDE, SMALL = 64, 32
"""Maximum height and width of a picture and of a thumbnail, in pixels; larger ones are averaged down."""


_SEEN = 256
"""Samples whose values say what is black and white, where samples are not in memory."""


class Pictures:
    """Encodes samples as pictures until the budget is used up.

    images: the samples are images
    shown:  the samples are images, and the user allows pictures of them
    """

    def __init__(self, samples: Samples, wanted: bool, budget: int = BUDGET) -> None:
        self.images = is_image(samples)
        self.shown = self.images and wanted
        self.left = budget
        self._stretch = _range(samples) if self.images else (0.0, 1.0)

    def of(self, samples: Samples, rows: Sequence[int], side: int = SIDE) -> list[str]:
        """A data URI for each sample: none if samples may not be shown, fewer if the budget ends."""
        if not self.shown or not len(rows):
            return []
        low, high = self._stretch
        raw = stored(samples, rows).float()
        return self._kept([_png(_smaller(image, side), low, high) for image in raw])

    def synthetic(self, images: Tensor, side: int = SIDE) -> list[str]:
        """Data URIs of synthetic images ``(b, C, H, W)``, each scaled to its own range."""
        if not self.images:
            return []
        pictures = [_smaller(image.detach().cpu().float(), side) for image in images]
        return self._kept([_png(one, float(one.min()), float(one.max())) for one in pictures])

    def room(self, shape: tuple[int, ...], side: int = SIDE) -> int:
        """The number of further pictures of this shape that certainly fit into the budget."""
        if not self.shown:
            return 0
        height, width = _fitted(shape[1], shape[2], side)
        worst = height * (width * shape[0] + 1) * 1.01 + 200  # PNG of noise, with headers
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
    """Signed values ``(rows, columns)`` as one grey pixel each: dark for positive, light for negative."""
    size = max(float(np.quantile(np.abs(values), 0.98)), 1e-12)
    grey = np.rint(127.5 - 127.5 * np.clip(values / size, -1, 1)).astype(np.uint8)
    return data_uri(Image.fromarray(grey))


def stored(samples: Samples, rows: Sequence[int]) -> Tensor:
    """The stored values ``(b, C, H, W)`` of images, read if they are not in memory."""
    raw = samples.raw[np.asarray(rows)]
    return tensor_of(raw.read() if isinstance(raw, Reading) else raw)


def _range(samples: Samples) -> tuple[float, float]:
    """The values of black and white; for samples that are not in memory, those of the first ones."""
    raw = stored(samples, range(min(len(samples), _SEEN))) if isinstance(samples.raw, Reading) else samples.raw
    values = tensor_of(raw)
    if values.is_floating_point():
        return float(values.min()), float(values.max())
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
