"""A folder of images, with one subfolder for each class. The subfolder's name is the name of the class.

Either ``PATH/train/<class>/*`` with optional ``PATH/val`` (or ``validation``) and ``PATH/test`` of the same
form, or ``PATH/<class>/*`` without published splits. Classes and files are sorted. Names that start with a dot, and
files without the suffix of an image, are skipped. Links that lead out of PATH are refused, so that a downloaded archive
cannot make ddm read other files of the user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ddm.data.images import Images, survey
from ddm.data.readers.locate import check_inside
from ddm.data.readers.published import Published
from ddm.errors import InputError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm"}
SPLITS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


def read(path: str, size: int | None) -> Published:
    """The splits in the folder; the classes are those of the training folder."""
    top = Path(path).expanduser()
    folders = _split_folders(top)
    classes = [folder.name for folder in _folders(folders["train"]) if _files(folder)]
    if not classes:
        raise InputError(
            f"'{folders['train']}' has no folders with images: put them in '{top}/train/<class>/' or '{top}/<class>/'."
        )
    files = {split: _list_labelled(folder, classes, top.resolve()) for split, folder in folders.items()}
    splits = {
        split: Images(
            [file for file, _ in pairs],
            torch.tensor([label for _, label in pairs], dtype=torch.int64),
            classes,
            f"folder:{path} {split}",
        )
        for split, pairs in files.items()
    }
    return Published(
        splits["train"],
        splits.get("validation"),
        splits.get("test"),
        survey=partial(survey, size=size),
    )


def _split_folders(top: Path) -> dict[str, Path]:
    """The folder of each split; without a folder ``train``, ``top`` itself is the training folder."""
    if not os.path.isdir(top):
        raise InputError(f"there is no folder '{top}': give one with a folder of images per class.")
    if not (top / "train").is_dir():
        return {"train": top}
    existing = {split: [top / name for name in names if (top / name).is_dir()] for split, names in SPLITS.items()}
    return {split: paths[0] for split, paths in existing.items() if paths}


def _list_labelled(parent: Path, classes: Sequence[str], top: Path) -> list[tuple[Path, int]]:
    pairs = []
    for folder in _folders(parent):
        files = _files(folder)
        if files and folder.name not in classes:
            raise InputError(f"'{folder}' is a class without training images: remove it, or add some.")
        pairs += [(check_inside(file, top), classes.index(folder.name)) for file in files]
    return pairs


def _folders(parent: Path) -> list[Path]:
    return sorted(one for one in parent.iterdir() if one.is_dir() and not one.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and not one.name.startswith("."))
