"""Images in a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

_LEAST_WIDTH = 3.6
"""Inches, so that a title fits above few images."""


def image_grid(images: Tensor, names: Sequence[str], columns: int) -> Figure:
    """Plot images ``(K, C, H, W)`` with their names, each scaled to its own range."""
    from ddm.plots.picture import picture

    figure = picture(figsize=(max(_LEAST_WIDTH, columns * 0.9), -(-len(images) // columns) * 1.1), layout="constrained")
    show_images(figure, images, names, columns)
    return figure


def show_images(figure: FigureBase, images: Tensor, names: Sequence[str], columns: int) -> None:
    """Draw images into an existing figure or a part of it."""
    grid = figure.subplots(-(-len(images) // columns), columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, name in zip(grid.flat, images, names, strict=False):
        axes.imshow(pixels(image), cmap="gray", interpolation="nearest")
        axes.set_title(name, fontsize=7, parse_math=False)


def pixels(image: Tensor) -> np.ndarray:
    """An image ``(C, H, W)`` scaled to 0 … 1: ``(H, W, 3)`` if it has three channels, else the first ``(H, W)``."""
    low, high = image.min(), image.max()
    scaled: np.ndarray = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).numpy()
    return scaled if scaled.shape[2] == 3 else scaled[..., 0]
