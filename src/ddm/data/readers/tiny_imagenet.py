"""Tiny ImageNet: 200 kinds of objects, 3×64×64 JPEG files in folders.

``wnids.txt`` lists the classes' identifiers, ``words.txt`` their names (identifier, tab, synonyms). Training
images are ``train/<identifier>/images/*.JPEG``; ``val/val_annotations.txt`` (file, tab, identifier, tab, box)
labels those in ``val/images``, which serve as the test split, as the published test images have no labels.
Any part of the images will do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from ddm.data.images import Form, Images
from ddm.data.readers.places import Root, file_in, folder_with, inside, missing
from ddm.data.readers.published import Published
from ddm.errors import InputError

NAME = "tiny-imagenet"


def read(root: Root, size: int | None) -> Published:
    """The classes that have training images, in the order of ``wnids.txt``."""
    folder = folder_with(NAME, root, ["tiny-imagenet-200"], ["wnids.txt"])
    wnids = [line.strip() for line in _lines(file_in(NAME, folder, ["wnids.txt"])) if line.strip()]
    if strange := [wnid for wnid in wnids if not wnid.isalnum()]:
        raise InputError(f"'{folder}' names a class '{strange[0][:40]}' in wnids.txt: download it again.")
    train = {wnid: files for wnid in wnids if (files := _jpegs(folder / "train" / wnid / "images"))}
    if not train:
        raise missing(NAME, ["train/<wnid>/images/*.JPEG"], folder)
    classes = _class_names(folder / "words.txt", list(train))
    form = Form(3, size or 64, size or 64, resize=size is not None)

    def split(files: Sequence[tuple[Path, int]], use: str) -> Images:
        labels = torch.tensor([label for _, label in files], dtype=torch.int64)
        home = folder.resolve()
        return Images([inside(file, home) for file, _ in files], labels, classes, f"{NAME} {use}", form)

    pairs = [(file, label) for label, files in enumerate(train.values()) for file in files]
    has_test = (folder / "val").is_dir()
    return Published(
        split(pairs, "train"),
        test=split(_annotated(folder / "val", list(train)), "test") if has_test else None,
    )


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", errors="replace").splitlines()


def _jpegs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.JPEG"))


def _annotated(folder: Path, wnids: Sequence[str]) -> list[tuple[Path, int]]:
    """Images and labels of the annotated files that are there and belong to these classes."""
    rows = [line.split("\t") for line in _lines(file_in(NAME, folder, ["val_annotations.txt"])) if "\t" in line]
    there = set(os.listdir(folder / "images")) if (folder / "images").is_dir() else set()
    label = {wnid: index for index, wnid in enumerate(wnids)}
    return [(folder / "images" / file, label[wnid]) for file, wnid, *_ in rows if file in there and wnid in label]


def _class_names(path: Path, wnids: Sequence[str]) -> list[str]:
    """The first synonym of each identifier; all of them where two classes share the first."""
    lines = _lines(path) if path.is_file() else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    synonyms = [words.get(wnid, wnid) for wnid in wnids]
    firsts = [names.split(",")[0] for names in synonyms]
    count = Counter(firsts)
    return [first if count[first] == 1 else names for first, names in zip(firsts, synonyms, strict=True)]
