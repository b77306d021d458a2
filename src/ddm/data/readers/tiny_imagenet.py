"""Tiny ImageNet: 200 kinds of objects, 3×64×64 JPEG files in folders.

``wnids.txt`` lists the classes' identifiers, ``words.txt`` their names (identifier, tab, synonyms). Training
images are ``train/<identifier>/images/*.JPEG``; ``val/val_annotations.txt`` (file, tab, identifier, tab, box)
labels the images in ``val/images``. They serve as the test split, because the published test images have no labels.
Images may be missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from ddm.data.images import Form, Images
from ddm.data.readers.locate import Root, check_inside, find_file, find_folder, missing_file
from ddm.data.readers.published import Published
from ddm.errors import InputError

NAME = "tiny-imagenet"


def read(root: Root, size: int | None) -> Published:
    """The splits; the classes are those with training images, in the order of ``wnids.txt``."""
    folder = find_folder(NAME, root, ["tiny-imagenet-200"], ["wnids.txt"])
    wnids = [line.strip() for line in _lines(find_file(NAME, folder, ["wnids.txt"])) if line.strip()]
    if invalid := [wnid for wnid in wnids if not wnid.isalnum()]:
        raise InputError(f"'{folder}' has the invalid class '{invalid[0][:40]}' in wnids.txt: download it again.")
    train = {wnid: files for wnid in wnids if (files := _jpegs(folder / "train" / wnid / "images"))}
    if not train:
        raise missing_file(NAME, ["train/<wnid>/images/*.JPEG"], folder)
    classes = _class_names(folder / "words.txt", list(train))
    form = Form(3, size or 64, size or 64, resize=size is not None)

    def split(files: Sequence[tuple[Path, int]], use: str) -> Images:
        labels = torch.tensor([label for _, label in files], dtype=torch.int64)
        top = folder.resolve()
        return Images([check_inside(file, top) for file, _ in files], labels, classes, f"{NAME} {use}", form)

    pairs = [(file, label) for label, files in enumerate(train.values()) for file in files]
    has_test = (folder / "val").is_dir()
    return Published(
        split(pairs, "train"),
        test=split(_read_annotations(folder / "val", list(train)), "test") if has_test else None,
    )


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", errors="replace").splitlines()


def _jpegs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.JPEG"))


def _read_annotations(folder: Path, wnids: Sequence[str]) -> list[tuple[Path, int]]:
    """Images and labels of the annotated files that exist and belong to these classes."""
    rows = [line.split("\t") for line in _lines(find_file(NAME, folder, ["val_annotations.txt"])) if "\t" in line]
    existing = set(os.listdir(folder / "images")) if (folder / "images").is_dir() else set()
    label = {wnid: index for index, wnid in enumerate(wnids)}
    return [(folder / "images" / file, label[wnid]) for file, wnid, *_ in rows if file in existing and wnid in label]


def _class_names(path: Path, wnids: Sequence[str]) -> list[str]:
    """The first synonym of each identifier; all synonyms if two classes share the first."""
    lines = _lines(path) if path.is_file() else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    synonyms = [words.get(wnid, wnid) for wnid in wnids]
    firsts = [names.split(",")[0] for names in synonyms]
    count = Counter(firsts)
    return [first if count[first] == 1 else names for first, names in zip(firsts, synonyms, strict=True)]
