"""The trail of a trace: effects of the classes, then of the clusters of the strongest class, and exact effects."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ddm.plots import units
from ddm.plots.effect_bars import ROW, bars, with_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddm.answers.attribution import Attribution
    from ddm.answers.trace import Trace

_LINE = 70
"""Characters of the title above each panel."""


def trail(trace: Trace, count: int) -> Figure:
    """Plot at most ``count`` bars per level. The result has a black edge; diamonds are effects by retraining.

    A group that does not stand out has no edge.
    """
    from ddm.plots.picture import picture

    levels = [level.sort() for level in (trace.classes, trace.clusters) if level is not None]
    rows = min(count, max(len(level) for level in levels))
    figure = picture(figsize=(1.5 + 4.5 * len(levels), 2 + ROW * rows), layout="constrained")
    panels = figure.subplots(1, len(levels), squeeze=False, sharex=True)[0]
    for axes, level in zip(panels, levels, strict=True):
        bars(axes, level, min(count, len(level)))
    if trace.classes is not None:
        assert trace.class_name is not None
        panels[0].set_ylabel("class removed")
        mark(panels[0], levels[0], trace.class_name)
    panels[-1].set_ylabel("group removed" if trace.classes is None else "cluster removed")
    if trace.stands_out:
        mark(panels[-1], levels[-1], trace.group)
    if trace.verified is not None:
        diamonds(panels[-1], levels[-1], trace.verified)
    figure.suptitle(_title(trace), fontsize=10, parse_math=False)
    handles, labels = panels[-1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def mark(axes: Axes, level: Attribution, name: str) -> None:
    """Draw a black edge around the bar of a group, and its name in bold."""
    row = level.names.index(name)
    if row >= len(axes.patches):  # not among the groups shown
        return
    bar, label = axes.patches[row], axes.get_yticklabels()[row]
    bar.set(edgecolor="black", linewidth=2, label="found")
    label.set_fontweight("bold")


def diamonds(axes: Axes, level: Attribution, verified: Attribution) -> None:
    """Draw the exact effects of the groups with a retraining."""
    shown = [name for name in verified.names if level.names.index(name) < len(axes.patches)]
    scores = units.scale(verified.fraction) * verified.scores
    values = [float(scores[verified.names.index(name)]) for name in shown]
    rows = [level.names.index(name) for name in shown]
    axes.plot(values, rows, "D", color="white", markeredgecolor="black", label="exact effect, by retraining")


def _title(trace: Trace) -> str:
    if trace.no_stand_out is not None:
        width = _LINE * (1 if trace.classes is None else 2)
        return "\n".join([with_all(trace.clusters), *textwrap.wrap(trace.no_stand_out, width)])
    found = f"class {trace.class_name} → {trace.group}" if trace.classes is not None else f"group {trace.group}"
    return f"{with_all(trace.clusters)}\nfound: {found}, {trace.effect_text} without it"
