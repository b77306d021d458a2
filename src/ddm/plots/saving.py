"""Pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddm.compute.files import atomic_write
from ddm.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture atomically."""
    kind = picture_kind(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120)


def picture_kind(path: Path) -> str:
    """The format of a picture, png, svg or pdf, from the suffix of its path."""
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"a picture cannot be '{kind}': use png, svg or pdf.")
    return kind
