"""Sentences, tables and pictures as HTML. Names come from data, so all text is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{escape(text)}</p>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with names in the first column, left-aligned, and numbers in the others, right-aligned."""
    lines = [_line("th", headings), *(_line("td", row) for row in rows)]
    return f"<table><thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody></table>"


def data_uri(picture: Image) -> str:
    """A picture as a PNG data URI, which needs no file and no request."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _line(tag: str, cells: Sequence[str]) -> str:
    sides = ("left" if column == 0 else "right" for column in range(len(cells)))
    inside = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(inside)}</tr>"
