"""Find the files of a published dataset, or say what is wrong: which one is missing, where to put it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddm.compute.files import is_outside
from ddm.errors import InputError

Root = str | os.PathLike[str] | None


def folder_with(name: str, root: Root, published: Sequence[str], wanted: Sequence[str]) -> Path:
    """The folder that holds one of the ``wanted`` files: ``root``, or a ``published`` folder in it."""
    top = Path("data", name) if root is None else Path(root).expanduser()
    for folder in (top, *(top / inside for inside in published)):
        if any(os.path.exists(folder / file) for file in wanted):
            return folder
    raise missing(name, wanted, top)


def file_in(name: str, folder: Path, wanted: Sequence[str]) -> Path:
    """The first of the ``wanted`` files that the folder has."""
    for file in wanted:
        if os.path.isfile(folder / file):
            return folder / file
    raise missing(name, wanted, folder)


def inside(path: Path, home: Path) -> Path:
    """``path``, unless it leads out of ``home`` by a link or is no ordinary file: pipes need not end."""
    if is_outside(path, home):
        raise InputError(f"'{path}' is a link that leads out of '{home}': put the file itself there, or remove it.")
    if path.exists() and not path.is_file():
        raise InputError(f"'{path}' is not an ordinary file: remove it.")
    return path


def missing(name: str, wanted: Sequence[str], folder: Path) -> InputError:
    """The error for a file that is not there; the first two of its names will do."""
    names = " or ".join(wanted[:2])
    return InputError(f"{name} needs {names} in '{folder}': download it there, or pass --root.")


def reason(error: BaseException) -> str:
    """What a library said about a file, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
