"""The interactive charts, as Plotly's data and layout. Colours are variables of the style sheet."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

Chart = dict[str, Any]

INK, MUTED, LINE, PAPER = "var(--ink)", "var(--muted)", "var(--line)", "var(--paper)"
SIGNED = [[0, "var(--lowers)"], [0.5, PAPER], [1, "var(--raises)"]]
"""From lowering over nothing to raising."""

LARGEST = 46
"""Pixels across the largest circle of a map."""

_LONGEST = 16
"""Characters of a name beside an axis."""


def group_map(
    places: np.ndarray, names: Sequence[str], sizes: np.ndarray, effects: np.ndarray, hover: list[str]
) -> Chart:
    """Groups at their places ``(K, 2)``, as large as they are and coloured by their effect on the loss ``(K,)``."""
    limit = _limit(effects)
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
            "color": _plain(effects),
            "colorscale": SIGNED,
            "cmin": -limit,
            "cmax": limit,
            "line": {"color": MUTED, "width": 1},
        },
    }
    return _chart([{"type": "scatter", **marks}], xaxis={"visible": False}, yaxis={"visible": False})


def bars(names: Sequence[str], effects: np.ndarray, hover: list[str], title: str) -> Chart:
    """A bar a group, raising to the right and lowering to the left."""
    values = _plain(effects)
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": list(range(len(names))),
        "hovertext": hover,
        "hoverinfo": "text",
        "textposition": "none",
        "marker": {"color": ["var(--raises)" if (value or 0) > 0 else "var(--lowers)" for value in values]},
    }
    across = {"title": {"text": title, "standoff": 8}, "zerolinecolor": MUTED, "gridcolor": LINE, "nticks": 6}
    return _chart([trace], xaxis=across, yaxis=_names(names, reverse=True))


def heat(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    hover: list[list[str]],
    *,
    signed: bool,
    text: list[list[str]] | None = None,
    titles: tuple[str, str] = ("", ""),
) -> Chart:
    """Values ``(R, C)`` as colours: of either sign around 0, or counts from 0."""
    limit = _limit(values)
    trace: Chart = {
        "type": "heatmap",
        "z": [_plain(row) for row in values],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "zmin": -limit if signed else 0,
        "zmax": limit,
        "colorscale": SIGNED if signed else [[0, PAPER], [1, "var(--raises)"]],
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
    """A name as text for Plotly, which takes some tags for markup."""
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
    """An axis of names: numbered, because names may look like numbers or be long."""
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


def _limit(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.astype(float)]
