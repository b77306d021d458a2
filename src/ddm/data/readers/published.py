"""A dataset as its reader returns it, and the steps that build the three splits of every dataset.

The order of the steps: take a missing test split from the training split, then a missing validation split; cut each
split to ``limit``; read the inputs; normalise them with mean and standard deviation of the training split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ddm.compute.memory import check_memory
from ddm.data.samples import Data, Samples
from ddm.data.stratify import choose_stratified
from ddm.errors import InputError

TEST_SHARE = 0.2


class Split(Protocol):
    """A published split: labels, and samples by row. Either ``Samples``, or ``Images`` that are decoded when read."""

    @property
    def labels(self) -> Tensor:
        """``(n,)`` int64; for tasks without classes ``(n, ...)`` of any numbers."""

    def __getitem__(self, rows: np.ndarray, /) -> Samples:
        """Samples of these rows ``(m,)``, with the rows as their ``origin``."""

    def bytes_per_sample(self, size: int | None, /) -> int:
        """Bytes of memory for each sample after resizing images to ``size`` × ``size`` pixels."""


Survey = Callable[[Sequence[tuple[Any, np.ndarray]]], Sequence[Split]]
"""``survey([(split, rows), …])`` returns the same splits, ready to read these rows."""


@dataclass(frozen=True)
class Published:
    """A dataset as its publisher split it.

    survey:     finds the common shape of all inputs from the rows that will be read, those of the training first
    task:       what the labels are, as ``ddm.data.tasks`` names it
    normalised: True if the reader normalises the samples itself
    """

    train: Split
    validation: Split | None = None
    test: Split | None = None
    survey: Survey | None = None
    task: str = "classification"
    normalised: bool = False


def build_splits(
    name: str, published: Published, *, limit: int | None, validation: float, seed: int, size: int | None = None
) -> Data:
    """Three splits with one normalisation. If only a validation split is published, it serves as the test split."""
    train = _Part.whole(published.train, f"{name} train")
    held_out = [split for split in (published.validation, published.test) if split is not None]
    if held_out:
        test = _Part.whole(held_out.pop(), f"{name} test")
    else:
        # A fixed seed instead of the user's, so that all runs on a dataset have the same test split.
        train, test = train.carve(TEST_SHARE, np.random.default_rng(0), "test")
    val = _Part.whole(held_out.pop(), f"{name} validation") if held_out else None
    if val is None and validation > 0:
        train, val = train.carve(validation, np.random.default_rng([seed, 0]), "validation")

    parts = [part.at_most(limit, np.random.default_rng([seed, 1])) for part in (train, test, val) if part is not None]
    if published.survey is not None:
        splits = published.survey([(part.split, part.rows) for part in parts])
        parts = [replace(part, split=split) for part, split in zip(parts, splits, strict=True)]
    needed = sum(len(part.rows) * part.split.bytes_per_sample(size) for part in parts)
    check_memory(needed, name, "pass --size or --limit")
    training, testing, *validating = (part.read(size) for part in parts)
    splits = (training, validating[0] if validating else testing, testing)
    if not published.normalised:
        splits = _normalise(name, *splits)
    encode = getattr(parts[0].split, "encode", None)
    return Data(name, *splits, len(published.train.labels), published.task, encode)


def _normalise(name: str, train: Samples, validation: Samples, test: Samples) -> tuple[Samples, Samples, Samples]:
    for samples in (validation, test):
        if samples.shape != train.shape or samples.dtype != train.dtype:
            raise InputError(
                f"{name} has training inputs of shape {train.shape} and type {train.dtype} but validation or test "
                f"inputs of {samples.shape} and {samples.dtype}: make them alike."
            )
    mean, std = train.moments()
    train, validation, test = (samples.with_normalisation(mean, std) for samples in (train, validation, test))
    return train, validation, test


@dataclass(frozen=True)
class _Part:
    """Some rows of a published split, not read yet."""

    split: Split
    rows: np.ndarray
    what: str

    @classmethod
    def whole(cls, split: Split, what: str) -> _Part:
        if len(split.labels) == 0:
            raise InputError(f"{what} is empty: it needs at least one sample.")
        return cls(split, np.arange(len(split.labels)), what)

    @property
    def strata(self) -> np.ndarray:
        """The class of each row ``(n,)``; 0 for all rows if they have no classes."""
        labels: np.ndarray = np.asarray(self.split.labels)[self.rows]
        return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else np.zeros(len(labels), dtype=np.int64)

    def carve(self, share: float, random: np.random.Generator, use: str) -> tuple[_Part, _Part]:
        """Split about ``share`` of each class off. Returns the part that remains and the part split off.

        At least one sample of each class remains.
        """
        carved = choose_stratified(self.strata, max(1, round(share * len(self.rows))), random, leave_one=True)
        if len(carved) == 0:
            raise InputError(
                f"{self.what} has one sample per class, so none can be set aside for {use}: add samples, or a "
                f"{use} split of its own."
            )
        remaining = np.setdiff1d(np.arange(len(self.rows)), carved)
        return self._select(remaining), self._select(carved)

    def at_most(self, limit: int | None, random: np.random.Generator) -> _Part:
        if limit is None or len(self.rows) <= limit:
            return self
        return self._select(choose_stratified(self.strata, limit, random))

    def read(self, size: int | None) -> Samples:
        samples = self.split[self.rows]
        return samples if size is None else samples.resize(size)

    def _select(self, positions: np.ndarray) -> _Part:
        return _Part(self.split, self.rows[positions], self.what)
