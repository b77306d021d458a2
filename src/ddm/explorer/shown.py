"""Samples as HTML: enlarged pictures, the beginnings of texts, or the columns of a row that stand out.

Texts and tables come from users, so all text is escaped.
"""

from __future__ import annotations

from html import escape

from torch import Tensor

from ddm.data.inputs import tensor_of
from ddm.data.reading import Reading
from ddm.data.samples import Samples
from ddm.data.shown import describe, differing_columns, is_image, label_text
from ddm.explorer import pictures

SNIPPET = 110
"""Maximum characters of a sample in a list."""

_COLUMNS = 3
"""Columns that are shown of a row in a list."""


def sample(samples: Samples, row: int, words: str) -> str:
    """A small picture or a snippet of a sample. ``words`` say what it is."""
    words = escape(words, quote=True)
    if is_image(samples):
        return f"<img src='{pictures.inline_png(pixels(samples, row))}' alt='{words}' title='{words}'>"
    return f"<span class='ddm-snippet' title='{words}'>{_inside(samples, row)}</span>"


def in_full(samples: Samples, row: int) -> str:
    """A sample in question: the picture, or its text."""
    if is_image(samples):
        return f"<img src='{pictures.inline_png(pixels(samples, row))}' alt='the image in question'>"
    return f"<p class='ddm-text'>{escape(describe(samples, row, 2000))}</p>"


def line(samples: Samples, row: int) -> str:
    """A sample as plain text in one line, with its name and its label."""
    columns = differing_columns(samples, row, _COLUMNS)
    words = ", ".join(f"{column} {value}" for column, value, _ in columns) or describe(samples, row, SNIPPET)
    named = "" if samples.ids is None else samples.ids[row]
    return " · ".join(part for part in (named, label_text(samples, row), words) if part)


def pixels(samples: Samples, row: int) -> Tensor:
    """The stored pixels ``(C, H, W)`` of an image."""
    raw = samples.raw[[row]]
    return tensor_of(raw.read() if isinstance(raw, Reading) else raw)[0]


def _inside(samples: Samples, row: int) -> str:
    columns = differing_columns(samples, row, _COLUMNS)
    if not columns:
        return escape(describe(samples, row, SNIPPET))
    return "; ".join(
        f"{escape(column)} <b>{escape(value)}</b> (usually {escape(usual)})" for column, value, usual in columns
    )
