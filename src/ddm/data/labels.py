"""Encode published labels, which are whole numbers or strings, as ``0 … classes − 1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.data.samples import MAX_CLASSES, default_class_names
from ddm.errors import InputError


def encode_labels(
    columns: Mapping[str, Any], classes: Sequence[str] | None, what: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Class names, and for each split its labels ``(n,)`` int64.

    Without ``classes``, the class names are the sorted strings, or the whole numbers from 0 to the largest label.
    """
    arrays = {split: _column(values, f"{what} {split}") for split, values in columns.items()}
    kinds = {array.dtype.kind for array in arrays.values()}
    if kinds <= set("U"):
        return _from_strings(arrays, classes, what)
    if kinds <= set("biuf"):
        return _from_numbers(arrays, classes, what)
    raise InputError(f"{what} must have labels that are all whole numbers or all strings.")


def _column(values: Any, what: str) -> np.ndarray:
    """Labels ``(n,)`` from a list or an array ``(n,)`` or ``(n, 1)``, with bytes decoded to text."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
    except ValueError:
        raise InputError(f"{what} has labels that cannot be read: give one label per sample.") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"{what} has labels of shape {array.shape}: give one label per sample.")
    return array


def _from_strings(
    arrays: Mapping[str, np.ndarray], classes: Sequence[str] | None, what: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    kinds = [np.unique(array) for array in arrays.values()]
    if max(map(len, kinds)) > MAX_CLASSES:
        raise InputError(f"{what} has more than {MAX_CLASSES:,} different labels: give fewer classes.")
    found = sorted({str(label) for labels in kinds for label in labels})
    position = {label: index for index, label in enumerate(found if classes is None else classes)}
    if unknown := [label for label in found if label not in position]:
        raise InputError(f"{what} has the label '{unknown[0]}', which is not among its classes: add it.")
    labels = {split: torch.tensor([position[str(one)] for one in array]) for split, array in arrays.items()}
    return tuple(position), labels


def _from_numbers(
    arrays: Mapping[str, np.ndarray], classes: Sequence[str] | None, what: str
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    for split, array in arrays.items():
        if not np.isfinite(array).all() or not np.array_equal(array, np.round(array)):
            raise InputError(f"{what} {split} has labels that are not whole numbers: give whole numbers or strings.")
    low = min(int(array.min()) for array in arrays.values())
    high = max(int(array.max()) for array in arrays.values())
    if classes is None:
        classes = default_class_names(high, what)
    if low < 0 or high >= len(classes):
        raise InputError(
            f"{what} has labels from {low} to {high}; with {len(classes)} classes they must lie in "
            f"0 to {len(classes) - 1}."
        )
    return tuple(classes), {split: torch.from_numpy(array.astype(np.int64)) for split, array in arrays.items()}
