"""Datasets: ``load(name)`` returns the three splits of a dataset, with the same normalisation.

A new dataset is one line in ``_DATASETS``. A new format is one file in ``readers`` with a function that returns
``Published``. ``published.build_splits`` does what all datasets share: limits, held-out splits, normalisation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddm.compute.validation import check_upper_bounds
from ddm.data.columns import Columns
from ddm.data.readers import cifar, digits, folder, hub, idx, npz, table, tiny_imagenet
from ddm.data.readers.published import Published, build_splits
from ddm.data.samples import Data
from ddm.errors import InputError

MAX_SIZE = 4096


@dataclass(frozen=True)
class _Dataset:
    """The reader of a dataset, and which of ``path``, ``root``, ``size`` and ``columns`` are arguments of the reader.

    Images whose reader has no argument ``size`` are resized after reading.
    """

    read: Callable[..., Published]
    arguments: tuple[str, ...] = ()


_DATASETS = {
    "digits": _Dataset(digits.read),
    "mnist": _Dataset(idx.mnist, ("root",)),
    "fashion-mnist": _Dataset(idx.fashion_mnist, ("root",)),
    "cifar10": _Dataset(cifar.cifar10, ("root",)),
    "cifar100": _Dataset(cifar.cifar100, ("root",)),
    "tiny-imagenet": _Dataset(tiny_imagenet.read, ("root", "size")),
    "folder:PATH": _Dataset(folder.read, ("path", "size")),
    "npz:PATH": _Dataset(npz.read, ("path",)),
    "csv:PATH": _Dataset(table.read_csv, ("path", "columns")),
    "parquet:PATH": _Dataset(table.read_parquet, ("path", "columns")),
    "hf:NAME": _Dataset(hub.read, ("path", "size")),
}


def names() -> list[str]:
    """The names that ``load`` accepts; replace ``PATH`` and ``NAME`` by your own."""
    return list(_DATASETS)


def default_root(name: str) -> str | None:
    """The folder where ``load`` looks for a dataset's files by default; None if the dataset has no such folder."""
    return os.path.join("data", name) if "root" in _find(name)[0].arguments else None


def load(
    name: str = "digits",
    root: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
    **columns: Any,
) -> Data:
    """The training, validation and test splits of a dataset.

    name:       one of ``names()``, for example ``mnist`` or ``folder:photos``
    root:       folder of the published files, or its parent (default: ``data/<name>``)
    limit:      at most this many samples in each split, drawn in proportion to the classes
    validation: share of the training samples set aside when the publisher has no validation split;
                0 uses the test split as validation
    seed:       random seed for the samples that are set aside and drawn
    size:       resize images to this many pixels in height and width
    columns:    for ``csv:PATH`` and ``parquet:PATH``, what the columns are for: ``label=…``, and if need be ``text``,
                ``tokenizer``, ``length``, ``group_by``, ``task``, ``id`` and ``drop`` (``ddm.data.columns``)
    """
    _check_options(limit, validation, seed, size)
    dataset, path = _find(name)
    given = {"path": path, "root": root, "size": size, "columns": _columns(name, dataset, columns)}
    for option, value in given.items():
        if value is not None and option not in (*dataset.arguments, "size"):
            raise InputError(f"{name} has no option {option}: leave out --{option}.")
    published = dataset.read(**{option: given[option] for option in dataset.arguments})
    after = size if "size" not in dataset.arguments else None
    return build_splits(name, published, limit=limit, validation=validation, seed=seed, size=after)


def is_table(name: str) -> bool:
    """True if the columns of a dataset need names."""
    return "columns" in _find(name)[0].arguments


def _columns(name: str, dataset: _Dataset, given: dict[str, Any]) -> Columns | None:
    """The use of each column of a table; refused for other datasets."""
    if "columns" in dataset.arguments:
        return Columns.parse(given)
    for option, value in given.items():
        if value is not None and value != ():
            raise InputError(f"{name} has no option {option}: leave out --{option.replace('_', '-')}.")
    return None


def _find(name: str) -> tuple[_Dataset, str | None]:
    """The registry's entry for a name, and the part of the name after the colon."""
    kind, colon, path = name.partition(":")
    for known, dataset in _DATASETS.items():
        known_kind, known_colon, placeholder = known.partition(":")
        if (kind, colon) == (known_kind, known_colon):
            if colon and not path:
                raise InputError(f"'{name}' needs a {placeholder.lower()} after the colon: write {known}.")
            return dataset, path if colon else None
    raise InputError(f"there is no dataset '{name}': use one of {', '.join(names())}.")


def _check_options(limit: int | None, validation: float, seed: int, size: int | None) -> None:
    check_upper_bounds(limit=limit)
    if limit is not None and (int(limit) != limit or limit < 1):
        raise InputError(f"limit must be a whole number of 1 or more, not {limit}.")
    if not 0 <= validation < 1:
        raise InputError(f"validation must be a share from 0 up to but not including 1, not {validation}.")
    if int(seed) != seed or seed < 0:
        raise InputError(f"seed must be a whole number of 0 or more, not {seed}.")
    if size is not None and (int(size) != size or not 1 <= size <= MAX_SIZE):
        raise InputError(f"size must be a whole number of pixels from 1 to {MAX_SIZE}, not {size}.")
