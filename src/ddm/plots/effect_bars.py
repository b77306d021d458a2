"""The effects of removing groups, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddm.plots import units
from ddm.plots.colours import NEUTRAL, WITHIN_NOISE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddm.answers.attribution import Attribution

ROW = 0.28
"""Inches of height for each bar."""


def effects(attribution: Attribution, count: int) -> Figure:
    """Plot the effects of the first ``count`` groups of an attribution as bars."""
    from ddm.plots.picture import picture

    shown = min(count, len(attribution))
    figure = picture(figsize=(7, 1.4 + ROW * shown), layout="constrained")
    axes = figure.add_subplot()
    bars(axes, attribution, shown)
    axes.set_ylabel("group removed")
    axes.set_title(with_all(attribution), fontsize=10, parse_math=False)
    return figure


def bars(axes: Axes, attribution: Attribution, shown: int) -> None:
    """Draw one bar for each of the first ``shown`` groups: to the right if removing the group raises the value.

    Whiskers are intervals. Bars of effects within noise are light.
    """
    scores = units.scale(attribution.fraction) * attribution.scores[:shown]
    colours = [NEUTRAL if clear else WITHIN_NOISE for clear in attribution.stands_out[:shown]]
    axes.barh(range(shown), np.nan_to_num(scores), color=colours)
    whiskers(axes, attribution, shown)
    # Names come from data: a $ in them must not start a formula.
    axes.set_yticks(range(shown), attribution.names[:shown], parse_math=False)
    axes.set_ylim(shown - 0.4, -0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    for row in np.flatnonzero(np.isnan(scores)).tolist():
        axes.text(0, row, " not measured", va="center", fontsize=8)
    change = "change in points" if attribution.fraction else "change of the value"
    measured = ", none if measured" if attribution.measured_alone[:shown].any() else ""
    notes = f"\nwhiskers: 90 % intervals{measured} · light: within noise" if attribution.has_intervals else ""
    axes.set_xlabel(f"{change}\n← removing the group lowers it · removing it raises it →{notes}")


def whiskers(axes: Axes, attribution: Attribution, shown: int) -> None:
    """Draw the interval of each of the first ``shown`` effects that has one. A measured effect has no width."""
    rows = [i for i in range(shown) if attribution.interval(i) is not None and not attribution.measured_alone[i]]
    ends = np.array([attribution.interval(i) for i in rows]).reshape(-1, 2) * units.scale(attribution.fraction)
    axes.hlines(rows, ends[:, 0], ends[:, 1], color="black", linewidth=1)
    axes.plot(ends.ravel(), np.repeat(rows, 2), "|", color="black", markersize=5)


def with_all(attribution: Attribution) -> str:
    """The name of the value, and its size with all groups."""
    value = units.value_text(attribution.baseline[attribution.focus], attribution.fraction)
    return f"{attribution.measured}: {value} with all groups"
