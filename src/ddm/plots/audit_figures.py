"""The figures of an audit, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ddm.plots.colours import ACCENT, NEUTRAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddm.truth.audit import Audit


def audit(result: Audit, labels: Mapping[str, str]) -> Figure:
    """Plot each figure of an audit with its interval, the score of another retraining, and the noise ceiling.

    labels: the name of each figure
    """
    from ddm.plots.picture import picture

    figures = result.figures["same run"]
    names = [name for name, figure in figures.items() if figure["value"] is not None]
    figure = picture(figsize=(7, 1.2 + 0.5 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for row, name in enumerate(names):
        value, low, high, retrain, ceiling = (figures[name][key] for key in _KEYS)
        assert value is not None
        spread = [[value - (value if low is None else low)], [(value if high is None else high) - value]]
        axes.errorbar(value, row, xerr=np.maximum(spread, 0), fmt="o", color=ACCENT, capsize=3)
        for mark, position in (("D", retrain), ("|", ceiling)):
            if position is not None:
                axes.plot(position, row, mark, color=NEUTRAL, markersize=7 if mark == "D" else 18)
    axes.plot([], [], "o", color=ACCENT, label="this datamodel, 95 % interval")
    axes.plot([], [], "D", color=NEUTRAL, label="another retraining")
    axes.plot([], [], "|", color=NEUTRAL, markersize=12, label="noise ceiling")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), [labels[name] for name in names])
    axes.set_xlim(max(axes.get_xlim()[0], _LIMITS[0]), min(axes.get_xlim()[1], _LIMITS[1]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("agreement with retraining: 1 is perfect")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


_KEYS = ("value", "low", "high", "retrain", "ceiling")

_LIMITS = (-1.1, 2.1)
"""Limits of the axis. A slope has no bounds, and values far outside would squeeze the other figures."""
