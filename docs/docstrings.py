"""Docstrings of this package as markdown: their lines ``name: meaning`` become lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^([\w…*]+(?:, [\w…*]+)*):(\s+)(\S.*)$")


class Fields(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """Paragraphs that begin with ``name: meaning`` as lists, an entry for each such line."""
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if not _FIELD.match(lines[0]):
        return text
    found = []
    for line in lines:
        field = _FIELD.match(line)
        if field:
            names = ", ".join(f"`{name}`" for name in field.group(1).split(", "))
            found.append(f"- {names}: {field.group(3)}")
        else:
            found.append(f"    {line.strip()}")
    return "\n".join(found)
