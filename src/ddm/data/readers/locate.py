"""Find the files of a published dataset, or say which one is missing and where to put it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddm.compute.files import is_outside
from ddm.errors import InputError

Root = str | os.PathLike[str] | None


def find_folder(name: str, root: Root, subfolders: Sequence[str], wanted: Sequence[str]) -> Path:
    """The folder with one of the ``wanted`` files: ``root``, or one of its ``subfolders`` as publishers name them."""
    top = Path("data", name) if root is None else Path(root).expanduser()
    for folder in (top, *(top / subfolder for subfolder in subfolders)):
        if any(os.path.exists(folder / file) for file in wanted):
            return folder
    raise missing_file(name, wanted, top)


def find_file(name: str, folder: Path, wanted: Sequence[str]) -> Path:
    """The first of the ``wanted`` files that is in the folder."""
    for file in wanted:
        if os.path.isfile(folder / file):
            return folder / file
    raise missing_file(name, wanted, folder)


def check_inside(path: Path, folder: Path) -> Path:
    """Return ``path``. Refuse a link that leads out of ``folder``, and pipes and devices, which may never end."""
    if is_outside(path, folder):
        raise InputError(f"'{path}' is a link that leads out of '{folder}': put the file itself there, or remove it.")
    if path.exists() and not path.is_file():
        raise InputError(f"'{path}' is not a regular file: remove it.")
    return path


def missing_file(name: str, wanted: Sequence[str], folder: Path) -> InputError:
    """The error for a missing file; it lists the first two of the names that the file may have."""
    names = " or ".join(wanted[:2])
    return InputError(f"{name} needs {names} in '{folder}': download it there, or pass --root.")


def one_line(error: BaseException) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__
