"""A matplotlib figure that notebooks display."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

from matplotlib.figure import Figure


def picture(**options: Any) -> Figure:
    """A figure that notebooks display without pyplot and its list of open windows.

    It is no subclass, because experiment trackers such as Weights & Biases accept matplotlib's own class alone.
    """
    figure = Figure(**options)
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Figure) -> bytes:
    with io.BytesIO() as file:
        figure.savefig(file, format="png")
        return file.getvalue()
