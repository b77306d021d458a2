"""A figure that shows itself in notebooks."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure without pyplot's list of open windows, which notebooks would need to show it."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()
