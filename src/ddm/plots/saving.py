"""Pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddm.compute.files import atomic_write
from ddm.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all."""
    kind = picture_kind(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120)


def picture_kind(path: Path) -> str:
    """png, svg or pdf, by the path's ending."""
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"a picture can be png, svg or pdf, not '{kind}'.")
    return kind
