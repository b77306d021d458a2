"""Labels of a table: classes, several labels of 0 and 1, or a number to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddm.data.columns import Columns
from ddm.data.features import as_numbers, as_words, is_number
from ddm.data.labels import MAX_CLASSES
from ddm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FEW = 100
"""Maximum different numbers that are taken for classes without being asked."""

_DISTINCT = 0.5
"""Share of different values from which on words cannot be classes."""


@dataclass(frozen=True)
class Labelled:
    """The labels of all rows.

    labels:  ``(n,)`` classes or numbers, ``(n, L)`` for several labels
    classes: a name for each class or output
    """

    task: str
    labels: Tensor
    classes: tuple[str, ...]


def read_labels(frame: pd.DataFrame, columns: Columns, what: str) -> Labelled:
    """The labels of a table, checked."""
    for name in columns.label:
        _refuse_missing(frame[name], name, what)
    if columns.kind == "regression":
        return _numbers(frame[columns.label[0]], columns.label[0], what)
    if columns.kind == "multilabel":
        return _several(frame, columns, what)
    return _classes(frame[columns.label[0]], columns, what)


def _refuse_missing(column: pd.Series[Any], name: str, what: str) -> None:
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise InputError(
            f"the label '{name}' of {what} is missing in {len(missing):,} of {len(column):,} rows, the first of them "
            f"row {missing[0]} counted from 0: fill them in, or remove these rows."
        )


def _numbers(column: pd.Series[Any], name: str, what: str) -> Labelled:
    if not is_number(column):
        raise InputError(f"the label '{name}' of {what} is not a number, as a regression needs: leave out --task.")
    values = as_numbers(column, name).to_numpy(np.float64)
    with np.errstate(over="ignore"):
        labels = torch.from_numpy(values.astype(np.float32))
    if not bool(labels.isfinite().all()):
        raise InputError(f"the label '{name}' of {what} has numbers too large for float32: divide them.")
    spread = float(values.std())
    if not spread > 1e-6 * abs(float(values.mean())):
        raise InputError(f"the label '{name}' of {what} is the same in every row: there is nothing to predict.")
    return Labelled("regression", labels, (name,))


def _several(frame: pd.DataFrame, columns: Columns, what: str) -> Labelled:
    for name in columns.label:
        if not is_number(frame[name]) or not bool(frame[name].isin([0, 1]).all()):
            raise InputError(f"the label '{name}' of {what} must be 0 or 1 in every row of a multi-label task.")
    values = np.stack([frame[name].to_numpy(np.float32) for name in columns.label], 1)
    return Labelled("multilabel", torch.from_numpy(values), columns.label)


def _classes(column: pd.Series[Any], columns: Columns, what: str) -> Labelled:
    name, numbers = columns.label[0], is_number(column)
    try:
        different = int(column.nunique())
    except TypeError:
        raise InputError(f"the label '{name}' of {what} holds neither numbers nor words: name another.") from None
    if numbers and columns.task is None and (different > FEW or not _are_whole(column)):
        raise InputError(
            f"the label '{name}' of {what} has {different:,} different numbers: to predict the number, add --task "
            "regression; if they are classes, --task classification."
        )
    if different > MAX_CLASSES or (different > FEW and different > _DISTINCT * len(column)):
        raise InputError(
            f"the label '{name}' of {what} has {different:,} different values in {len(column):,} rows, so they cannot "
            "be classes: name another."
        )
    if different < 2:
        raise InputError(f"the label '{name}' of {what} is the same in every row: give data with two classes or more.")
    given = column.to_numpy() if numbers else np.array([" ".join(word.split()) for word in as_words(column)])
    values, labels = np.unique(given, return_inverse=True)
    classes = [_name(value) for value in values.tolist()]
    counts = np.bincount(labels)
    if (rare := np.flatnonzero(counts == 1)).size:
        more = f" (and {rare.size - 1:,} more)" if rare.size > 1 else ""
        raise InputError(
            f"the class '{classes[rare[0]]}'{more} of '{name}' has one row in {what}, too few to learn and to test it: "
            "remove the row, or merge the class with another."
        )
    return Labelled("classification", torch.from_numpy(labels.astype(np.int64)), tuple(classes))


def _are_whole(column: pd.Series[Any]) -> bool:
    if column.dtype.kind in "biu":
        return True
    values = as_numbers(column, str(column.name)).to_numpy(np.float64)
    return bool((values == np.round(values)).all())


def _name(value: Any) -> str:
    """The name of a class; numbers that a file stores as floats lose their ``.0``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
