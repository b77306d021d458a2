"""A matplotlib figure that notebooks display."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that notebooks display without pyplot and its list of open windows."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()
