"""The partition D_1 … D_K of the training set into groups.

By default k-means splits each class ``l`` into ``C`` clusters, by features of the target's penultimate layer. Group
``(l, c)`` is named ``class/cluster``. The paper's "w/o cluster" cuts each class in the order of the training set.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ddm.compute.progress import bar
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.features import Features, features_of
from ddm.training.target import Target

Group = int | str
"""A group as users name it: its number, or its name such as ``3/7``."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The group of each training sample.

    groups:  ``(n,)`` int64, each in ``0 … K − 1``; no group is empty
    names:   the name of each group
    parents: ``(K,)`` the class of each group; None if a group has samples of several classes
    classes: the name of each class
    """

    groups: np.ndarray
    names: tuple[str, ...]
    parents: np.ndarray | None
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of samples in each group ``(K,)``."""
        return np.bincount(self.groups, minlength=len(self))

    @property
    def shares(self) -> np.ndarray:
        """Fraction of the training set in each group ``(K,)``, n_κ / n."""
        shares: np.ndarray = self.sizes / len(self.groups)
        return shares

    def members(self, group: Group) -> np.ndarray:
        """Positions of a group's samples in the training set."""
        return self.rows(self.index(group))

    def rows(self, number: int) -> np.ndarray:
        """Positions of the samples of group ``number`` in the training set."""
        order, starts = self._sorted
        return order[starts[number] : starts[number + 1]]

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of all samples sorted by group, and the start of each group among them ``(K + 1,)``."""
        return np.argsort(self.groups, kind="stable"), np.concatenate([[0], np.cumsum(self.sizes)])

    def index(self, group: Group) -> int:
        """The number of a group given by name or number. Text that could be both is a name."""
        text = str(group) if isinstance(group, (int, np.integer, str)) else ""
        if text in self.names:
            number = self.names.index(text)
            if isinstance(group, str) or number == group:
                return number
            raise InputError(
                f"{group} is the name of group {number} here: give it as text, '{group}', or group {group} as "
                f"'{self.names[group] if 0 <= group < len(self) else number}'."
            )
        if re.fullmatch(r"[0-9]+", text) and int(text) < len(self):
            return int(text)
        raise InputError(
            f"there is no group '{group}': give a number from 0 to {len(self) - 1} or a name such as "
            f"'{self.names[0]}' or '{self.names[-1]}'."
        )

    def mask(self, groups: Group | Iterable[Group]) -> np.ndarray:
        """True for each of the groups given, False for the others ``(K,)``."""
        chosen = [groups] if isinstance(groups, (int, np.integer, str)) else list(groups)
        mask = np.zeros(len(self), dtype=bool)
        mask[[self.index(group) for group in chosen]] = True
        return mask

    def removal(self, groups: Group | Iterable[Group]) -> np.ndarray:
        """The mask ``(K,)`` of groups to remove, refused if no group would be left."""
        mask = self.mask(groups)
        if mask.all():
            raise InputError("removing every group leaves no training data: keep at least one.")
        return mask

    def __repr__(self) -> str:
        where = "that cut across classes" if self.parents is None else f"in {len(np.unique(self.parents)):,} classes"
        return (
            f"Partition: {len(self.groups):,} training samples in {len(self):,} groups of "
            f"{self.sizes.min():,} to {self.sizes.max():,} samples {where}"
        )

    def by_class(self) -> Partition | None:
        """The partition with one group per class; None if a group has samples of several classes."""
        if self.parents is None:
            return None
        present = np.unique(self.parents)
        groups = np.searchsorted(present, self.parents)[self.groups]
        return Partition(groups, tuple(self.classes[c] for c in present), present, self.classes)


def make_partition(
    target: Target,
    samples: Samples,
    partition: str | Partition | Sequence[Any] | np.ndarray,
    clusters: int,
    features: Features = None,
    seed: int = 0,
) -> Partition:
    """The partition of this name (kmeans, sequence or class), the user's own groups, or the partition given itself."""
    if isinstance(partition, Partition):
        if len(partition.groups) != len(samples):
            raise InputError(
                f"the partition has {len(partition.groups)} samples, the training set {len(samples)}: give another."
            )
        return partition
    if not isinstance(partition, str):
        return from_groups(samples, partition)
    if partition == "kmeans":
        return kmeans(samples, features_of(samples, features, target), clusters, seed)
    if partition == "sequence":
        return sequential(samples, clusters)
    if partition == "class":
        return classwise(samples)
    raise InputError(f"there is no partition '{partition}': use kmeans, class, sequence or your own groups.")


def classwise(samples: Samples) -> Partition:
    """One group per class."""
    labels = samples.labels.numpy()
    present, groups = np.unique(labels, return_inverse=True)
    return Partition(groups, tuple(samples.classes[c] for c in present), present, samples.classes)


def sequential(samples: Samples, clusters: int) -> Partition:
    """Each class cut into ``clusters`` equal parts, in the order of the training set."""

    def cut(rows: np.ndarray, count: int) -> np.ndarray:
        return np.arange(len(rows)) * count // len(rows)

    return _within_classes(samples, clusters, cut)


def kmeans(samples: Samples, features: np.ndarray, clusters: int, seed: int = 0) -> Partition:
    """Each class split into ``clusters`` by k-means on ``features (n, F)``."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    def cut(rows: np.ndarray, count: int) -> np.ndarray:
        # Several threads add sums in varying order, which changes the clusters.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # ``_within_classes`` warns of too few distinct points
            numbers: np.ndarray = KMeans(count, n_init=4, random_state=seed).fit_predict(features[rows])
        return numbers

    return _within_classes(samples, clusters, cut)


def from_groups(samples: Samples, groups: Sequence[Any] | np.ndarray) -> Partition:
    """The user's own groups: a number, word or date for each training sample."""
    try:
        values = np.asarray(groups)
        names, numbers = np.unique(values, return_inverse=True)
    except (TypeError, ValueError):
        raise InputError("groups must be numbers or words, one kind for all of them.") from None
    if values.shape != (len(samples),):
        raise InputError(f"groups of shape {values.shape} do not fit {len(samples)} training samples: give one each.")
    if len({str(name) for name in names}) < len(names):
        raise InputError("some groups differ but look the same as text: rename them.")
    labels = samples.labels.numpy()
    first = np.array([labels[numbers == k][0] for k in range(len(names))])
    nested = bool((labels == first[numbers]).all())
    return Partition(
        numbers.astype(np.int64),
        tuple(str(name) for name in names),
        first if nested else None,
        samples.classes,
    )


def _within_classes(samples: Samples, clusters: int, cut: Callable[[np.ndarray, int], np.ndarray]) -> Partition:
    """Split each class by ``cut(rows, count)``, which returns a number for each row, and leave out empty groups."""
    if clusters < 1:
        raise InputError(f"clusters must be at least 1, not {clusters}.")
    labels = samples.labels.numpy()
    groups = np.empty(len(labels), dtype=np.int64)
    names: list[str] = []
    parents: list[int] = []
    short = []
    for label, rows, parts in _cuts(labels, clusters, cut):
        found, numbers = np.unique(parts, return_inverse=True)
        groups[rows] = len(names) + numbers
        names += [f"{samples.classes[label]}/{c}" for c in range(len(found))]
        parents += [int(label)] * len(found)
        if len(found) < clusters:
            short.append(f"{samples.classes[label]} ({len(found)})")
    if short:
        warnings.warn(
            f"too few distinct samples for {clusters} clusters in {len(short)} classes: {', '.join(short[:5])}"
            f"{', …' if len(short) > 5 else ''} have fewer.",
            stacklevel=3,
        )
    return Partition(groups, tuple(names), np.array(parents), samples.classes)


def _cuts(
    labels: np.ndarray, clusters: int, cut: Callable[[np.ndarray, int], np.ndarray]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each class, the positions of its samples, and the cluster of each sample."""
    classes = np.unique(labels)
    with bar("clustering", len(classes)) as advance:
        for label in classes:
            rows = np.flatnonzero(labels == label)
            yield label, rows, cut(rows, min(clusters, len(rows)))
            advance(1)
