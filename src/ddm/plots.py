"""Pictures of results, in colours that colour-blind people can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddm.errors import InputError
from ddm.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddm.attribution import Attribution
    from ddm.audit import Audit

RAISES, LOWERS = "#0072B2", "#D55E00"


def effects(attribution: Attribution, count: int) -> Figure:
    """Bars of the first ``count`` groups of an attribution."""
    from matplotlib.figure import Figure

    shown = min(count, len(attribution))
    scores = attribution.scores[:shown]
    figure = Figure(figsize=(7, 1.4 + 0.28 * shown), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(range(shown), np.nan_to_num(scores), color=[RAISES if s > 0 else LOWERS for s in scores])
    axes.set_yticks(range(shown), attribution.names[:shown])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_ylabel("group removed")
    axes.set_xlabel("change of the value\n← removing the group lowers it · removing it raises it →")
    axes.set_title(
        f"{attribution.measured}: {attribution.baseline[attribution.focus]:.4g} with all groups", fontsize=10
    )
    return figure


def audit(found: Audit) -> Figure:
    """Each figure of an audit with its interval, what another retraining scores, and the noise ceiling."""
    from matplotlib.figure import Figure

    figures = found.figures["same run"]
    names = [name for name, figure in figures.items() if figure["value"] is not None]
    figure = Figure(figsize=(7, 1.2 + 0.5 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for row, name in enumerate(names):
        value, low, high, retrain, ceiling = (figures[name][key] for key in _AUDITED)
        assert value is not None
        spread = [[value - (value if low is None else low)], [(value if high is None else high) - value]]
        axes.errorbar(value, row, xerr=np.maximum(spread, 0), fmt="o", color=RAISES, capsize=3)
        for mark, position in (("D", retrain), ("|", ceiling)):
            if position is not None:
                axes.plot(position, row, mark, color=LOWERS, markersize=7 if mark == "D" else 18)
    axes.plot([], [], "o", color=RAISES, label="this datamodel, 95 % interval")
    axes.plot([], [], "D", color=LOWERS, label="another retraining")
    axes.plot([], [], "|", color=LOWERS, markersize=12, label="noise ceiling")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("agreement with retraining: 0 is chance, 1 is perfect")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


_AUDITED = ("value", "low", "high", "retrain", "ceiling")


def save(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all."""
    kind = picture_kind(path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120)


def picture_kind(path: Path) -> str:
    """png, svg or pdf, by the path's ending."""
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"a picture can be png, svg or pdf, not '{kind}'.")
    return kind


def image_grid(images: Tensor, names: Sequence[str], columns: int) -> Figure:
    """Images ``(K, C, H, W)`` with their names, each scaled to its own range."""
    from matplotlib.figure import Figure

    rows = -(-len(images) // columns)
    figure = Figure(figsize=(columns * 0.9, rows * 1.1), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, name in zip(grid.flat, images, names, strict=False):
        low, high = image.min(), image.max()
        pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).numpy()
        axes.imshow(pixels[..., 0] if pixels.shape[2] != 3 else pixels, cmap="gray", interpolation="nearest")
        axes.set_title(name, fontsize=7)
    return figure
