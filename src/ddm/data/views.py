"""Views: how people see samples that are not pictures, as a text or as a row of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

SNIPPET = 160
"""Maximum characters of a text."""

ROW = 320
"""Maximum characters of a row of a table."""


class View(Protocol):
    """How people see samples that are not pictures."""

    def __getitem__(self, rows: np.ndarray, /) -> View:
        """The view of these rows ``(m,)``."""

    def text(self, row: int, /) -> str:
        """One sample in a line or two."""


@dataclass(frozen=True, eq=False)
class TextView:
    """Texts.

    texts: ``(n,)``, as they are in the file
    """

    texts: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: np.ndarray, /) -> TextView:
        return TextView(self.texts[rows])

    def text(self, row: int, /) -> str:
        """The beginning of a text."""
        return shortened(str(self.texts[row]), SNIPPET)


@dataclass(frozen=True, eq=False)
class TableView:
    """Rows of a table.

    frame: the columns that the network reads and that of the groups, as they are in the file ``(n, columns)``
    """

    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, rows: np.ndarray, /) -> TableView:
        return TableView(self.frame.iloc[rows])

    def text(self, row: int, /) -> str:
        """The columns of a row with their values, such as ``carrier UA, dep_delay 93``."""
        values = zip(self.frame.columns, self.frame.iloc[row], strict=True)
        return shortened(", ".join(f"{name} {_value(value)}" for name, value in values), ROW)

    def differing(self, row: int, others: TableView, count: int = 5) -> list[tuple[str, str, str]]:
        """The columns in which a row differs most from other rows, such as those of its class.

        Returns for each its name, its value in this row, and what is usual: the median, or the most frequent value.
        """
        found = []
        for name in self.frame.columns:
            here, there = self.frame[name].iloc[row], others.frame[name].dropna()
            if len(there):
                distance, usual = (_from_numbers if _is_number(there) else _from_words)(here, there)
                found.append((distance, str(name), _value(here), _value(usual)))
        found.sort(key=lambda each: -each[0])
        return [(name, value, usual) for distance, name, value, usual in found[:count] if distance > 0]


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _from_numbers(here: Any, others: pd.Series[Any]) -> tuple[float, Any]:
    """How many standard deviations a number lies from the median, and the median."""
    values = others.to_numpy(np.float64)
    median, spread = float(np.median(values)), float(values.std())
    if here != here:  # missing
        return 0.0, median
    return abs(float(here) - median) / spread if spread else float(here != median), median


def _from_words(here: Any, others: pd.Series[Any]) -> tuple[float, Any]:
    """How many standard deviations "it is the most frequent value" lies from its mean, and that value."""
    counts = others.astype(str).value_counts()
    usual, share = counts.index[0], float(counts.iloc[0]) / len(others)
    if str(here) == usual:
        return 0.0, usual
    return share / float(np.sqrt(max(share * (1 - share), 1 / len(others)))), usual


def _value(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return shortened(str(value), SNIPPET // 4)


def shortened(text: str, most: int) -> str:
    """A text on one line, cut between words."""
    words = " ".join(text[: 4 * most].split())
    if len(words) <= most:
        return words
    cut = words[: most - 1]
    return f"{cut.rpartition(' ')[0] if ' ' in cut[most // 2 :] else cut}…"
