"""The figures of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ddm.plots.colours import LOWERS, RAISES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddm.truth.audit import Audit


def audit(found: Audit, labels: Mapping[str, str]) -> Figure:
    """Each figure of an audit with its interval, the score of another retraining, and the noise ceiling.

    labels: what to call each figure
    """
    from ddm.plots.picture import Picture

    figures = found.figures["same run"]
    names = [name for name, figure in figures.items() if figure["value"] is not None]
    figure = Picture(figsize=(7, 1.2 + 0.5 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for row, name in enumerate(names):
        value, low, high, retrain, ceiling = (figures[name][key] for key in _KEYS)
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
    axes.set_yticks(range(len(names)), [labels[name] for name in names])
    axes.set_xlim(max(axes.get_xlim()[0], _FURTHEST[0]), min(axes.get_xlim()[1], _FURTHEST[1]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("agreement with retraining: 0 is chance, 1 is perfect")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


_KEYS = ("value", "low", "high", "retrain", "ceiling")

_FURTHEST = (-1.1, 2.1)
"""A slope has no bounds: what lies further out is cut off, so that the other figures stay readable."""
