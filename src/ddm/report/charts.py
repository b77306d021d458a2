"""The interactive charts as Plotly's data and layout. Colours are variables of the style sheet.

Colour marks what is bad, never the sign: the direction of a bar and + or − show the sign.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from ddm.answers.attribution import Attribution

Chart = dict[str, Any]

INK, MUTED, LINE, PAPER = "var(--ink)", "var(--muted)", "var(--line)", "var(--paper)"
NEUTRAL, BAD, NOISE = "var(--neutral)", "var(--bad)", "var(--noise)"

LARGEST = 46
"""Diameter of the largest circle of the map, in pixels."""

_LONGEST = 16
"""Maximum characters of a name on an axis."""


def group_map(
    places: np.ndarray, names: Sequence[str], sizes: np.ndarray, bad: Sequence[bool], hover: list[str]
) -> Chart:
    """Groups at their places ``(K, 2)``, with an area in proportion to their size. The ``bad`` ones are coloured."""
    marks = {
        "x": _plain(places[:, 0]),
        "y": _plain(places[:, 1]),
        "mode": "markers+text" if len(names) <= 80 else "markers",
        "text": [_short(name) for name in names],
        "textposition": "middle center",
        "textfont": {"size": 10},
        "hovertext": hover,
        "hoverinfo": "text",
        "cliponaxis": False,
        "marker": {
            "size": [int(size) for size in sizes],
            "sizemode": "area",
            "sizeref": 2 * float(sizes.max()) / LARGEST**2,
            "sizemin": 4,
            "color": _colours(bad),
            "opacity": 0.45,
            "line": {"color": MUTED, "width": 1},
        },
    }
    return _chart([{"type": "scatter", **marks}], xaxis={"visible": False}, yaxis={"visible": False})


def bars(
    names: Sequence[str],
    effects: np.ndarray,
    bad: Sequence[bool],
    hover: list[str],
    title: str,
    intervals: Attribution | None = None,
) -> Chart:
    """One bar per group, to the right for positive effects. The ``bad`` ones are coloured.

    intervals: the same effects with their intervals, drawn as whiskers; other bars within noise are light
    """
    trace: Chart = {
        "type": "bar",
        "orientation": "h",
        "x": _plain(effects),
        "y": list(range(len(names))),
        "hovertext": hover,
        "hoverinfo": "text",
        "textposition": "none",
        "marker": {"color": _colours(bad)},
    }
    if intervals is not None:
        noise = [bool(intervals.mark(i)) and not bad[i] for i in range(len(names))]
        trace["marker"] = {"color": [NOISE if noise[i] else c for i, c in enumerate(_colours(bad))]}
        trace["error_x"] = _whiskers(effects, intervals)
    across = {"title": {"text": title, "standoff": 8}, "zerolinecolor": MUTED, "gridcolor": LINE, "nticks": 6}
    return _chart([trace], xaxis=across, yaxis=_names(names, reverse=True))


def _whiskers(effects: np.ndarray, intervals: Attribution) -> Chart:
    low, high = intervals.low[:, intervals.focus], intervals.high[:, intervals.focus]
    return {
        "type": "data",
        "symmetric": False,
        "array": _plain(np.maximum(high - effects, 0)),
        "arrayminus": _plain(np.maximum(effects - low, 0)),
        "color": INK,
        "thickness": 1,
        "width": 3,
    }


def scatter(across: np.ndarray, up: np.ndarray, hover: list[str], titles: tuple[str, str]) -> Chart:
    """One point for each sample, with the line on which both values ``(n,)`` are equal."""
    low, high = (float(end) for end in (min(across.min(), up.min()), max(across.max(), up.max())))
    points: Chart = {
        "type": "scatter",
        "mode": "markers",
        "x": _plain(across),
        "y": _plain(up),
        "hovertext": hover,
        "hoverinfo": "text",
        "marker": {"color": NEUTRAL, "size": 6, "opacity": 0.5},
    }
    line: Chart = {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "y": [low, high],
        "hoverinfo": "skip",
        "line": {"color": MUTED, "width": 1, "dash": "dot"},
    }
    axes = [
        {"title": {"text": literal(title), "standoff": 8}, "gridcolor": LINE, "zeroline": False} for title in titles
    ]
    return _chart([line, points], xaxis=axes[0], yaxis=axes[1])


def heat(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    hover: list[list[str]],
    *,
    colour: str = NEUTRAL,
    text: list[list[str]] | None = None,
    titles: tuple[str, str] = ("", ""),
) -> Chart:
    """Values ``(R, C)`` as shades of a colour: the stronger, the darker, whatever the sign."""
    limit = _limit(values)
    trace: Chart = {
        "type": "heatmap",
        "z": [_plain(row) for row in values],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "zmin": -limit,
        "zmax": limit,
        "colorscale": [[0, colour], [0.5, PAPER], [1, colour]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertext": hover,
        "hoverinfo": "text",
    }
    if text is not None:
        trace |= {"text": text, "texttemplate": "%{text}", "textfont": {"size": 11}}
    down, across = titles
    chart = _chart(
        [trace],
        xaxis=_names(columns) | {"side": "top", "title": {"text": across, "standoff": 6}},
        yaxis=_names(rows, reverse=True) | {"title": {"text": down, "standoff": 6}},
    )
    chart["layout"]["plot_bgcolor"] = LINE  # shows between the cells
    return chart


def literal(name: str) -> str:
    """A name as text for Plotly, which would interpret some tags."""
    return html.escape(name, quote=False)


def _chart(data: list[Chart], **axes: Chart) -> Chart:
    fixed = {"automargin": True, "linecolor": LINE, "color": MUTED}
    layout = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "family": "var(--font)", "size": 12},
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": LINE, "font": {"color": INK}, "align": "left"},
        "showlegend": False,
        "bargap": 0.3,
        **{name: fixed | axis for name, axis in axes.items()},
    }
    return {"data": data, "layout": layout}


def _names(names: Sequence[str], reverse: bool = False) -> Chart:
    """An axis with names as labels. Positions are numbers, because Plotly would read some names as numbers."""
    every = max(1, -(-len(names) // 60))
    shown = range(0, len(names), every)
    return {
        "tickvals": list(shown),
        "ticktext": [_short(names[i]) for i in shown],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        **({"autorange": "reversed"} if reverse else {}),
    }


def _short(name: str) -> str:
    return literal(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


def _colours(bad: Sequence[bool]) -> list[str]:
    return [BAD if one else NEUTRAL for one in bad]


def _limit(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.astype(float)]
