"""Pieces of work for engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def failing(bad: Any, tries: Path) -> Callable[[Any], Any]:
    """Work that returns its piece, but for one that fails and leaves an x in a file for each try."""

    def work(piece: Any) -> Any:
        if piece == bad:
            with tries.open("a") as file:
                file.write("x")
            raise RuntimeError("cannot be done")
        return piece

    return work
