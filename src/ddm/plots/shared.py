"""A synset whose groups share their images: the images, and what the soft targets of each group ask of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddm.plots.colours import LOWERS, RAISES
from ddm.plots.images import show_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from ddm.distil.synset import Synset

_LABELS = 60
"""Names that fit on an axis."""


def shared_synset(synset: Synset, columns: int) -> Figure:
    """The images on the left, each scaled to its own range; the soft targets of each group on the right."""
    from ddm.plots.picture import Picture

    images, classes = synset.images[0], synset.targets.shape[2]
    widths = [0.5 * columns, 2.5 + 0.28 * min(classes, _LABELS)]
    tall = max(0.5 * -(-len(images) // columns), 0.16 * min(len(synset), _LABELS)) + 1
    figure = Picture(figsize=(sum(widths), tall), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=widths)[0]
    left.suptitle(f"{len(images)} images that all groups share", fontsize=10)
    show_images(left, images, [""] * len(images), columns)
    _targets(right.subplots(), synset)
    return figure


def pulls(synset: Synset) -> Tensor:
    """Mean soft target of each group over the images ``(K, L)``, less its mean over groups."""
    mean = synset.targets.mean(1)
    return mean - mean.mean(0)


def _targets(axes: Axes, synset: Synset) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    values = pulls(synset)
    limit = max(float(values.abs().max()), 1e-12)
    colours = LinearSegmentedColormap.from_list("signed", [LOWERS, "white", RAISES])
    drawn = axes.imshow(values.numpy(), cmap=colours, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    rows = range(0, len(synset), -(-len(synset) // _LABELS))
    axes.set_yticks(rows, [synset.names[row] for row in rows], fontsize=7, parse_math=False)
    axes.set_xticks(range(0, values.shape[1], -(-values.shape[1] // _LABELS)))
    axes.set_ylabel("group removed")
    axes.set_xlabel("class, by number")
    axes.set_title("soft targets: mean over the images,\nless the mean over groups", fontsize=10)
    axes.figure.colorbar(drawn, label="probability of the class\n← lower than for other groups · higher →")
