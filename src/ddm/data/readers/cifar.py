"""CIFAR-10 and CIFAR-100 in the publishers' Python pickles.

A batch is a dictionary with ``data``, ``(n, 3072)`` uint8, each row the red, green and blue plane of a 32×32 image,
and ``labels`` (CIFAR-10) or ``fine_labels`` (CIFAR-100), a list of n numbers. CIFAR-10's
training images are in ``data_batch_1`` to ``_5``, of which some may be missing; ``batches.meta`` and ``meta`` hold
the class names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ddm.compute.memory import check_memory
from ddm.data.labels import encode_labels
from ddm.data.readers.locate import Root, find_file, find_folder
from ddm.data.readers.pickles import read_pickle, text
from ddm.data.readers.published import Published
from ddm.data.samples import Samples
from ddm.errors import InputError

PIXELS = 3 * 32 * 32


def cifar10(root: Root) -> Published:
    """Ten kinds of objects, 3×32×32. ``origin`` numbers the samples across the batches in the folder."""
    batches = [f"data_batch_{index}" for index in range(1, 6)]
    folder = find_folder("cifar10", root, ["cifar-10-batches-py"], batches)
    classes = _class_names(folder / "batches.meta", "label_names", 10)
    train = [folder / batch for batch in batches if (folder / batch).is_file()]
    test = find_file("cifar10", folder, ["test_batch"])
    _check_sizes([*train, test], folder)
    return Published(
        _samples("cifar10", "train", train, "labels", classes),
        test=_samples("cifar10", "test", [test], "labels", classes),
    )


def cifar100(root: Root) -> Published:
    """A hundred kinds of objects (the fine labels), 3×32×32."""
    folder = find_folder("cifar100", root, ["cifar-100-python"], ["train"])
    classes = _class_names(folder / "meta", "fine_label_names", 100)
    train, test = find_file("cifar100", folder, ["train"]), find_file("cifar100", folder, ["test"])
    _check_sizes([train, test], folder)
    return Published(
        _samples("cifar100", "train", [train], "fine_labels", classes),
        test=_samples("cifar100", "test", [test], "fine_labels", classes),
    )


def _check_sizes(paths: Sequence[Path], folder: Path) -> None:
    check_memory(sum(path.stat().st_size for path in paths), f"the dataset in '{folder}'", "download it again")


def _samples(name: str, use: str, paths: Sequence[Path], labels_key: str, classes: Sequence[str]) -> Samples:
    batches = [_batch(path, labels_key) for path in paths]
    images = np.concatenate([images for images, _ in batches])
    _, labels = encode_labels({use: [label for _, labels in batches for label in labels]}, classes, name)
    return Samples.from_arrays(images.reshape(-1, 3, 32, 32), labels[use], classes, what=f"{name} {use}")


def _batch(path: Path, labels_key: str) -> tuple[np.ndarray, list[int]]:
    """Images ``(n, 3072)`` and the n labels of one file."""
    batch = read_pickle(path)
    images, labels = batch.get("data"), batch.get(labels_key)
    if not isinstance(images, np.ndarray) or images.shape[1] != PIXELS:
        raise InputError(f"'{path}' has no 'data' of {PIXELS} bytes per image: download it again.")
    if not _is_list_of(labels, int) or len(labels) != len(images):
        raise InputError(f"'{path}' has no '{labels_key}' with one number per image: download it again.")
    return images, labels


def _class_names(path: Path, key: str, count: int) -> list[str]:
    """The published names, or numbers if the file with the names is missing."""
    if not path.is_file():
        return [str(label) for label in range(count)]
    names = read_pickle(path).get(key)
    if not _is_list_of(names, (str, bytes)) or len(names) != count:
        raise InputError(f"'{path}' has no '{key}' with {count} names: download it again.")
    return [text(name) for name in names]


def _is_list_of(values: Any, kind: type | tuple[type, ...]) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
