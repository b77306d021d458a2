"""Text for a terminal: names come from files and must not move the cursor, change colours or hide other text."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except line break and tab, characters that reverse the direction of text, and surrogates."""


def printable(text: str) -> str:
    r"""The text with each unsafe character written as an escape such as ``\x1b``."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    r"""The same JSON with each unsafe character as a JSON escape such as ``\u009b``."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def console(*, stderr: bool = False) -> Console:
    """A console that prints names literally, without markup or control codes, and lets the terminal wrap long lines."""
    return _Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """Escape every string that rich prints, including cells, headings, titles and captions of tables."""
        return super().render_str(printable(text), **options)
