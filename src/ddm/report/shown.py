"""How a sample is shown on a page: as a picture, as the beginning of a text, or as the columns of a row that stand out.

Texts and tables come from users. Everything here is plain text, which the templates escape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddm.data.samples import Samples
from ddm.data.shown import describe, differing_columns, label_text, name
from ddm.report.pictures import BUDGET, SIDE, Pictures

SHORT = 110
"""Maximum characters of a sample beside a group."""

_COLUMNS = 4
"""Columns that are shown of a row."""

Item = dict[str, Any]
"""A sample as the templates show it: ``picture``, or else ``id``, ``label``, and ``text`` or ``columns``."""


class Shown:
    """Shows samples.

    images:  the samples are images
    shown:   the user allows samples on the page
    """

    def __init__(self, train: Samples, wanted: bool, budget: int = BUDGET) -> None:
        self.pictures = Pictures(train, wanted, budget)
        self.images, self.shown = self.pictures.images, wanted

    def of(self, samples: Samples, rows: Sequence[int], side: int = SIDE, longest: int | None = None) -> list[Item]:
        """An item for each sample: none if samples may not be shown, fewer pictures if the budget ends."""
        if not self.shown:
            return []
        if self.images:
            return [{"picture": uri} for uri in self.pictures.of(samples, rows, side)]
        return [_item(samples, int(row), longest) for row in rows]


def _item(samples: Samples, row: int, longest: int | None) -> Item:
    columns = differing_columns(samples, row, _COLUMNS)
    about = {"picture": None, "id": name(samples, row), "label": label_text(samples, row), "columns": columns}
    return about | {"text": "" if columns else describe(samples, row, *([] if longest is None else [longest]))}
