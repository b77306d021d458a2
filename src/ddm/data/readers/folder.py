"""A folder of images with one folder per class, named after it.

Either ``PATH/train/<class>/*`` with optional ``PATH/val`` (or ``validation``) and ``PATH/test`` alike, or
``PATH/<class>/*`` without published splits. Classes and files are taken in sorted order; names that start
with a dot, and files without an image's suffix, are left out. Links that lead out of PATH are refused: what comes in an
archive must not decide which of the user's other files are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ddm.data.images import Images, survey
from ddm.data.readers.places import inside
from ddm.data.readers.published import Published
from ddm.errors import InputError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm"}
SPLITS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


def read(path: str, size: int | None) -> Published:
    """Images of the training folder's classes."""
    top = Path(path).expanduser()
    places = _places(top)
    classes = [folder.name for folder in _folders(places["train"]) if _files(folder)]
    if not classes:
        raise InputError(
            f"'{places['train']}' has no images in folders per class: put them in '{top}/train/<class>/' or "
            f"'{top}/<class>/'."
        )
    files = {split: _labelled(place, classes, top.resolve()) for split, place in places.items()}
    return Published(
        **{
            split: Images(
                [file for file, _ in pairs],
                torch.tensor([label for _, label in pairs], dtype=torch.int64),
                classes,
                f"folder:{path} {split}",
            )
            for split, pairs in files.items()
        },
        survey=partial(survey, size=size),
    )


def _places(top: Path) -> dict[str, Path]:
    """The folder of each split that is there; ``top`` itself is the training folder if nothing is split."""
    if not os.path.isdir(top):
        raise InputError(f"there is no folder '{top}': give one with a folder of images per class.")
    if not (top / "train").is_dir():
        return {"train": top}
    found = {split: [top / name for name in names if (top / name).is_dir()] for split, names in SPLITS.items()}
    return {split: places[0] for split, places in found.items() if places}


def _labelled(place: Path, classes: Sequence[str], home: Path) -> list[tuple[Path, int]]:
    pairs = []
    for folder in _folders(place):
        files = _files(folder)
        if files and folder.name not in classes:
            raise InputError(f"'{folder}' is a class without training images: remove it, or add some.")
        pairs += [(inside(file, home), classes.index(folder.name)) for file in files]
    return pairs


def _folders(place: Path) -> list[Path]:
    return sorted(one for one in place.iterdir() if one.is_dir() and not one.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and not one.name.startswith("."))
