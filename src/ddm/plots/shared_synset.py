"""A synset whose groups share their images: the images, and the soft targets of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddm.plots.images import show_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from ddm.distil.synset import Synset

_LABELS = 60
"""Maximum number of names on an axis."""


def shared_synset(synset: Synset, columns: int) -> Figure:
    """Plot the images, each scaled to its own range, and beside them the soft targets of each group."""
    from ddm.plots.picture import picture

    images, classes = synset.pictures[0], synset.targets.shape[2]
    widths = [0.5 * columns, 2.5 + 0.28 * min(classes, _LABELS)]
    tall = max(0.5 * -(-len(images) // columns), 0.16 * min(len(synset), _LABELS)) + 1
    figure = picture(figsize=(sum(widths), tall), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=widths)[0]
    left.suptitle(f"{len(images)} images that all groups share", fontsize=10)
    show_images(left, images, [""] * len(images), columns)
    _targets(right.subplots(), synset)
    return figure


def pulls(synset: Synset) -> Tensor:
    """Mean soft target of each group over the images ``(K, L)``, minus the mean over groups."""
    mean = synset.targets.mean(1)
    return mean - mean.mean(0)


def _targets(axes: Axes, synset: Synset) -> None:
    values = pulls(synset)
    limit = max(float(values.abs().max()), 1e-12)
    image = axes.imshow(values.numpy(), cmap="gray_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    rows = range(0, len(synset), -(-len(synset) // _LABELS))
    axes.set_yticks(rows, [synset.names[row] for row in rows], fontsize=7, parse_math=False)
    axes.set_xticks(range(0, values.shape[1], -(-values.shape[1] // _LABELS)))
    axes.set_ylabel("group removed")
    axes.set_xlabel("class, by number")
    axes.set_title("soft targets: mean over the images,\nminus the mean over groups", fontsize=10)
    axes.figure.colorbar(image, label="probability of the class\n← lower than for other groups · higher →")
