"""The effects of removing groups, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddm.plots import units
from ddm.plots.colours import NEUTRAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddm.answers.attribution import Attribution

ROW = 0.28
"""Inches of height for each bar."""


def effects(attribution: Attribution, count: int) -> Figure:
    """Plot the effects of the first ``count`` groups of an attribution as bars."""
    from ddm.plots.picture import Picture

    shown = min(count, len(attribution))
    figure = Picture(figsize=(7, 1.4 + ROW * shown), layout="constrained")
    axes = figure.add_subplot()
    bars(axes, attribution, shown)
    axes.set_ylabel("group removed")
    axes.set_title(with_all(attribution), fontsize=10, parse_math=False)
    return figure


def bars(axes: Axes, attribution: Attribution, shown: int) -> None:
    """Draw one bar for each of the first ``shown`` groups: to the right if removing the group raises the value."""
    scores = units.scale(attribution.fraction) * attribution.scores[:shown]
    axes.barh(range(shown), np.nan_to_num(scores), color=NEUTRAL)
    # Names come from data: a $ in them must not start a formula.
    axes.set_yticks(range(shown), attribution.names[:shown], parse_math=False)
    axes.set_ylim(shown - 0.4, -0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    for row in np.flatnonzero(np.isnan(scores)).tolist():
        axes.text(0, row, " not measured", va="center", fontsize=8)
    change = "change in points" if attribution.fraction else "change of the value"
    axes.set_xlabel(f"{change}\n← removing the group lowers it · removing it raises it →")


def with_all(attribution: Attribution) -> str:
    """The name of the value, and its size with all groups."""
    value = units.value_text(attribution.baseline[attribution.focus], attribution.fraction)
    return f"{attribution.measured}: {value} with all groups"
