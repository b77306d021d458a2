"""Labels of samples, as the task has them: words and whole numbers become ``0 … classes − 1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.compute.validation import are_unique_names
from ddm.data.reading import Labels
from ddm.data.tasks import Task
from ddm.errors import InputError

MAX_CLASSES = 100_000


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


def parse_labels(
    given: Labels | Sequence[Any], count: int, classes: Sequence[str] | None, task: Task, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as the task has them, and a name for each class or output.

    count: the number of samples
    """
    if task.has_classes and np.asarray(given).dtype.kind in "US":
        classes, columns = encode_labels({"": given}, classes, what)
        given = columns[""]
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{what} has labels that are not numbers: give the numbers that {task.kind} needs.") from None
    if labels.is_complex():
        raise InputError(f"{what} holds complex numbers: give real ones.")
    if classes is not None and len(set(classes)) < len(classes):
        raise InputError(f"{what} has two classes with the same name: rename one.")
    if classes is not None and not are_unique_names(classes):
        raise InputError(f"{what} has a class whose name is not text: rename it.")
    if task.has_classes:
        return _parse_classes(labels, count, classes, what)
    if labels.dim() == 0 or len(labels) != count:
        raise InputError(f"{what} has {count} inputs but labels of shape {tuple(labels.shape)}: give one each.")
    labels = labels.long() if task.by_position else labels.float()
    width = labels.shape[1] if labels.dim() > 1 else 1
    outputs = int(labels.max()) + 1 if task.by_position else width
    if (why := task.check_labels(labels, outputs if classes is None else len(classes))) is not None:
        raise InputError(f"{what} has labels that do not fit {task.kind}: {why}.")
    return labels, tuple(classes if classes is not None else task.output_names(outputs))


def _parse_classes(
    labels: Tensor, count: int, classes: Sequence[str] | None, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    if labels.shape != (count,):
        raise InputError(f"{what} has {count} inputs but labels of shape {tuple(labels.shape)}: give one each.")
    if labels.is_floating_point() and not _are_whole(labels):
        raise InputError(
            f"{what} has labels that are not whole numbers: number the classes from 0, or give the task 'regression'."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= len(classes)):
        known = len(classes) if classes is not None else high + 1
        raise InputError(
            f"{what} has labels from {low} to {high}; with {known} classes they must lie in 0 to {known - 1}."
        )
    return labels.to(torch.int64), tuple(classes if classes is not None else default_class_names(high, what))


def _are_whole(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all()) and torch.equal(values, values.round())


def default_class_names(high: int, what: str) -> list[str]:
    """The names ``"0"`` to ``str(high)``, for classes without names."""
    if high >= MAX_CLASSES:
        raise InputError(f"{what} has the label {high}: number the classes from 0, {MAX_CLASSES} at most.")
    return [str(label) for label in range(high + 1)]
