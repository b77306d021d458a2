"""What results say of themselves in notebooks: sentences and tables. Names are data, so all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def paragraph(text: str) -> str:
    """A sentence or a few."""
    return f"<p>{escape(text)}</p>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its first column to the left and the others, which are numbers, to the right."""
    lines = [_line("th", headings), *(_line("td", row) for row in rows)]
    return f"<table><thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody></table>"


def _line(tag: str, cells: Sequence[str]) -> str:
    sides = ("left" if column == 0 else "right" for column in range(len(cells)))
    inside = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(inside)}</tr>"
