"""Tables and texts for benchmarks: scikit-learn's own tables, and the CSV files that ``bench/data`` writes.

Rows keep their order, which is random: the first 70 % are the training split, then 10 % validation and 20 % test. What
the columns and words become depends on the training split alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddm.data.samples import Data, Samples
from ddm.errors import InputError

_VALIDATION, _TEST = 0.7, 0.8
"""Where the validation and the test split begin, as shares of the rows."""

TOKENS, WORDS = 64, 3000
"""Number of tokens of a text at most, and number of token ids: padding, unknown, and the commonest words."""


@dataclass(frozen=True)
class _Kind:
    """How a dataset is read: a function of its CSV file, or None for the file if scikit-learn brings the data."""

    read: Callable[[Any], tuple[Samples, Samples, Samples]]
    file: str | None = None


def is_known(name: str) -> bool:
    """True for the name of a dataset of this file."""
    return name in _KINDS


def load(name: str, root: str | None = None) -> Data:
    """The three splits of a dataset.

    root: the folder of the CSV file, or the file itself
    """
    kind = _KINDS[name]
    splits = kind.read(name if kind.file is None else _find(kind.file, root))
    return Data(name, *splits, sum(map(len, splits)))


def _find(file: str, root: str | None) -> Path:
    path = Path(root or "data")
    path = path / file if path.is_dir() else path
    if path.name != file or not path.is_file():
        raise InputError(
            f"there is no {file} in '{root or 'data'}': make it with python bench/data/{Path(file).stem}.py, and name "
            "its folder as --root."
        )
    return path


def _splits(count: int) -> list[slice]:
    """The rows of the training, the validation and the test split."""
    first, second = int(_VALIDATION * count), int(_TEST * count)
    return [slice(0, first), slice(first, second), slice(second, count)]


def _cut(x: Any, labels: Any, classes: list[str], task: str) -> tuple[Samples, Samples, Samples]:
    """The three splits of all inputs ``(n, ...)`` and labels ``(n,)``."""
    make = Samples.from_arrays if isinstance(x, np.ndarray) else Samples.from_batch
    samples = make(x, labels, classes, task=task)
    train, validation, test = (samples[rows] for rows in _splits(len(samples)))
    return train, validation, test


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Columns ``(n, F)`` with mean 0 and variance 1 in the training split; missing values become 0."""
    known = columns[_splits(len(columns))[0]]
    spread = np.nanstd(known, axis=0)
    scaled: np.ndarray = (columns - np.nanmean(known, axis=0)) / np.where(spread > 0, spread, 1)
    filled: np.ndarray = np.nan_to_num(scaled)
    return filled


def _of_sklearn(name: str) -> tuple[Samples, Samples, Samples]:
    """A table of scikit-learn, in random order."""
    import sklearn.datasets

    found = getattr(sklearn.datasets, f"load_{name.replace('-', '_')}")()
    order = np.random.default_rng(0).permutation(len(found.data))
    x, y = _scaled(found.data[order].astype(float)).astype(np.float32), found.target[order]
    if name in _NUMBERS:
        return _cut(x, _scaled(y[:, None].astype(float))[:, 0].astype(np.float32), ["prediction"], "regression")
    return _cut(x, y, [str(one) for one in found.target_names], "classification")


_NUMBERS = ("diabetes",)
"""Tables of scikit-learn whose label is a number."""

_WORDS, _OUTCOMES = ("month", "weekday", "carrier", "origin", "dest"), ("arr_delay", "late")
"""Columns of ``flights.csv`` that are categories, and those that are only known after the flight."""


def _flights(path: Path, label: str) -> tuple[Samples, Samples, Samples]:
    """The table of flights. Numbers are scaled, with a column that tells where they miss; categories are encoded."""
    import pandas as pd

    table = pd.read_csv(path)
    numbers = table.drop(columns=[*_WORDS, *_OUTCOMES]).astype(float)
    missing = numbers.isna()
    categories = pd.get_dummies(table[list(_WORDS)].astype(str)).astype(float)
    x = np.hstack([_scaled(numbers.to_numpy()), missing.loc[:, missing.any()].to_numpy(), categories.to_numpy()])
    if label == "late":
        return _cut(
            x.astype(np.float32), (table[label] == "yes").to_numpy().astype(int), ["no", "yes"], "classification"
        )
    delay = _scaled(table[[label]].to_numpy(float))[:, 0]
    return _cut(x.astype(np.float32), delay.astype(np.float32), ["minutes"], "regression")


def _debian(path: Path) -> tuple[Samples, Samples, Samples]:
    """Descriptions of Debian packages as the ids of their words, with a mask."""
    import pandas as pd

    table = pd.read_csv(path)
    words = [re.findall(r"[a-z0-9+#]+", text.lower())[:TOKENS] for text in table.text]
    counts = Counter(word for text in words[_splits(len(words))[0]] for word in text)
    known = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 2]
    number = {word: place + 2 for place, word in enumerate(known)}
    ids, mask = (torch.zeros(len(words), TOKENS, dtype=torch.int64) for _ in range(2))
    for row, text in enumerate(words):
        ids[row, : len(text)] = torch.tensor([number.get(word, 1) for word in text])
        mask[row, : len(text)] = 1
    classes = sorted(set(table.section))
    labels = np.array([classes.index(section) for section in table.section])
    return _cut({"input_ids": ids, "attention_mask": mask}, labels, classes, "classification")


_KINDS = {
    "breast-cancer": _Kind(_of_sklearn),
    "wine": _Kind(_of_sklearn),
    "diabetes": _Kind(_of_sklearn),
    "flights": _Kind(lambda path: _flights(path, "late"), "flights.csv"),
    "flights-delay": _Kind(lambda path: _flights(path, "arr_delay"), "flights.csv"),
    "debian": _Kind(_debian, "debian.csv"),
}
