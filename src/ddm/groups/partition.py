"""The partition D_1 … D_K of the training set into groups.

By default k-means splits each class ``l`` into ``C`` clusters, by features of the target's penultimate layer. Group
``(l, c)`` is named ``class/cluster``. Samples without classes are split as one, into ``cluster 0``, ``cluster 1``, ….
The paper's "w/o cluster" is ``sequence``: it cuts each class into parts of equal size, in the order of the training
set. Both keep groups above a least size, because a group of one sample tells little
more than noise, and its synset reveals the sample.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from ddm.compute.progress import bar
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.columns import named_dates
from ddm.groups.features import Features, features_of
from ddm.training.target import Target

Group = int | str
"""A group as users name it: its number, or its name such as ``3/7``."""

_MANY, _MOSTLY = 100, 0.9
"""From this number of samples on, groups are refused if there are more than this many for each sample."""

SMALL_GROUP = 16
"""Synsets of groups with fewer samples than this reveal single samples, as ``ddm bench privacy`` shows."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The group of each training sample, or the samples of each group where groups overlap or leave samples out.

    groups:  ``(n,)`` int64, each in ``0 … K − 1``; no group is empty. Where groups overlap, the first group of each
             sample; −1 for a sample in no group
    names:   the name of each group
    parents: ``(K,)`` the class of each group; None if a group has samples of several classes
    classes: the name of each class, or of each output where samples have no class
    listed:  positions of each group's samples, sorted, if groups overlap or leave samples out; None if every sample is
             in exactly one group

    Effects of several groups are predicted as the sum of the effects of each. A sample that is in two of them counts
    twice in that sum. Retraining leaves it out once: ``rows_without`` has the union of the groups.
    """

    groups: np.ndarray
    names: tuple[str, ...]
    parents: np.ndarray | None
    classes: tuple[str, ...]
    listed: tuple[np.ndarray, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def overlaps(self) -> bool:
        """True if a sample is in several groups."""
        return self.listed is not None and int(self.sizes.sum()) > int((self.groups >= 0).sum())

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of samples in each group ``(K,)``."""
        if self.listed is not None:
            return np.array([len(rows) for rows in self.listed])
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
        if self.listed is not None:
            return self.listed[number]
        order, starts = self._sorted
        return order[starts[number] : starts[number + 1]]

    def rows_without(self, removed: np.ndarray) -> np.ndarray:
        """Positions of the samples in any of the removed groups, sorted, each once; ``removed (K,)`` is a mask."""
        if self.listed is None:
            return np.flatnonzero(removed[self.groups])
        return np.flatnonzero(self.amounts(np.asarray(removed, dtype=float)))

    def removal_of(self, rows: np.ndarray) -> np.ndarray | None:
        """The mask ``(K,)`` of groups that hold exactly the samples at ``rows``, none twice; None if there are none."""
        gone = np.zeros(len(self.groups), dtype=bool)
        gone[rows] = True
        inside = np.array([bool(gone[self.rows(k)].all()) for k in range(len(self))])
        same = inside & (self.sizes == gone.sum())
        if same.any():  # one group, even if others lie within it
            one: np.ndarray = np.arange(len(self)) == same.argmax()
            return one
        exact = len(self.rows_without(inside)) == gone.sum() and bool(self.are_disjoint(inside[None])[0])
        return inside if exact else None

    def amounts(self, amount: np.ndarray) -> np.ndarray:
        """The largest of ``amount (K,)`` among the groups of each sample ``(n,)``; 0 for a sample in no group."""
        if self.listed is None:
            found: np.ndarray = amount[self.groups]
            return found
        found = np.zeros(len(self.groups))
        for rows, value in zip(self.listed, amount, strict=True):
            if value:
                found[rows] = np.maximum(found[rows], value)
        return found

    def share_of(self, amount: np.ndarray) -> np.ndarray:
        """The fraction of the training set that removals ``amount (M, K)`` take away ``(M,)``, each sample once."""
        if not self.overlaps:
            shares: np.ndarray = amount @ self.shares
            return shares
        return np.array([self.amounts(row).mean() for row in amount])

    def are_disjoint(self, removed: np.ndarray) -> np.ndarray:
        """True for removals ``(M, K)`` in which no sample is in two of the removed groups ``(M,)``."""
        if not self.overlaps:
            return np.ones(len(removed), dtype=bool)
        return np.array([self.sizes[row != 0].sum() == len(self.rows_without(row != 0)) for row in removed])

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of all samples sorted by group, and the start of each group among them ``(K + 1,)``."""
        return np.argsort(self.groups, kind="stable"), np.concatenate([[0], np.cumsum(self.sizes)])

    def index(self, group: Group) -> int:
        """The number of a group given by name or number. A string that could be either is a name."""
        text = str(group) if isinstance(group, (int, np.integer, str)) else ""
        if text in self.names:
            number = self.names.index(text)
            if isinstance(group, str) or number == group:
                return number
            raise InputError(self._ambiguity(int(group), number))
        if re.fullmatch(r"[0-9]+", text) and int(text) < len(self):
            return int(text)
        raise InputError(
            f"there is no group '{group}': give a number from 0 to {len(self) - 1} or a name such as "
            f"'{self.names[0]}' or '{self.names[-1]}'."
        )

    def _ambiguity(self, group: int, named: int) -> str:
        """Why the number ``group`` is refused: it is also the name of group number ``named``."""
        other = f", or '{self.names[group]}' for group number {group}" if 0 <= group < len(self) else ""
        return f"{group} is also the name of group number {named}: write '{group}' for that group{other}."

    def mask(self, groups: Group | Iterable[Group]) -> np.ndarray:
        """A mask ``(K,)``: True for the given groups, False for the others."""
        chosen = [groups] if isinstance(groups, (int, np.integer, str)) else list(groups)
        mask = np.zeros(len(self), dtype=bool)
        mask[[self.index(group) for group in chosen]] = True
        return mask

    def removal(self, groups: Group | Iterable[Group]) -> np.ndarray:
        """The mask ``(K,)`` of groups to remove. Removing every group is refused."""
        mask = self.mask(groups)
        if self._takes_all(mask):
            raise InputError("removing every group leaves no training data: keep at least one.")
        return mask

    def _takes_all(self, removed: np.ndarray) -> bool:
        """True if every sample is in one of the removed groups; ``removed (K,)`` is a mask."""
        return bool(removed.all()) if self.listed is None else len(self.rows_without(removed)) == len(self.groups)

    def reweighting(self, weights: Mapping[Group, float]) -> np.ndarray:
        """1 − w ``(K,)`` for groups of weight w: 1 removes a group, 0 keeps it as it is, −1 doubles it."""
        if not isinstance(weights, Mapping):
            raise InputError("weights must map groups to numbers, such as {'3/7': 0.5}.")
        removed = np.zeros(len(self))
        numbers = [self.index(group) for group in weights]
        if len(set(numbers)) < len(numbers):
            raise InputError("weights name a group twice, once by number and once by name: name it once.")
        for number, weight in zip(numbers, weights.values(), strict=True):
            if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
                name = self.names[number]
                raise InputError(f"group '{name}' cannot weigh {weight!r}: give a finite number of at least 0.")
            removed[number] = 1 - float(weight)
        if self._takes_all(removed == 1):
            raise InputError("every group has the weight 0, which leaves no training data: keep at least one.")
        return removed

    def __repr__(self) -> str:
        where = "that cut across classes" if self.parents is None else f"in {len(np.unique(self.parents)):,} classes"
        if self.listed is not None:
            free = int((self.groups < 0).sum())
            where += f"; {free:,} samples are in no group" if free else ""
            where += "; groups overlap" if self.overlaps else ""
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


PartitionLike = str | Partition | Sequence[Any] | np.ndarray | Mapping[Any, Any]
"""What users may give as groups: a method, a value for each sample, or the positions of each group's samples."""


def make_partition(
    target: Target,
    samples: Samples,
    partition: PartitionLike,
    clusters: int,
    features: Features = None,
    seed: int = 0,
) -> Partition:
    """Partition the samples by a method (kmeans, sequence or class) or by the user's own groups.

    Groups are a number, word or date for each sample, or a mapping of names to positions in the training set. A
    ``Partition`` is returned unchanged if it fits the samples.
    """
    if isinstance(partition, Partition):
        if len(partition.groups) != len(samples):
            raise InputError(
                f"the partition has {len(partition.groups)} samples but the training set has {len(samples)}: "
                "give a partition of this training set."
            )
        return partition
    if isinstance(partition, Mapping):
        return from_rows(samples, partition)
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
    if not samples.has_classes:
        raise InputError("these samples have no classes: use kmeans, sequence, or groups of your own.")
    labels = samples.labels.numpy()
    present, groups = np.unique(labels, return_inverse=True)
    return Partition(groups, tuple(samples.classes[c] for c in present), present, samples.classes)


def sequential(samples: Samples, clusters: int) -> Partition:
    """Cut each class into ``clusters`` parts of equal size, in the order of the training set."""

    def cut(rows: np.ndarray, count: int, least: int) -> np.ndarray:
        return np.arange(len(rows)) * count // len(rows)

    return _split_classes(samples, clusters, cut)


def kmeans(samples: Samples, features: np.ndarray, clusters: int, seed: int = 0) -> Partition:
    """Split each class into ``clusters`` by k-means on ``features (n, F)``.

    A cluster below the least size of ``least_size`` takes samples from its neighbours.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    def cut(rows: np.ndarray, count: int, least: int) -> np.ndarray:
        # With several threads the order of summation varies, and the clusters with it.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # ``_split_classes`` warns of too few distinct points
            numbers: np.ndarray = KMeans(count, n_init=4, random_state=seed).fit_predict(features[rows])
        return _fill_small_clusters(features[rows], numbers, least)

    return _split_classes(samples, clusters, cut)


def from_groups(samples: Samples, groups: Sequence[Any] | np.ndarray) -> Partition:
    """The user's own groups: a number, word or date for each training sample. Many dates are grouped by month."""
    groups = named_dates(groups)
    try:
        values = np.asarray(groups)
        names, numbers = np.unique(values, return_inverse=True)
    except (TypeError, ValueError):
        raise InputError("groups must be all numbers or all words.") from None
    if values.shape != (len(samples),):
        raise InputError(
            f"groups of shape {values.shape} do not fit {len(samples)} training samples: give one group per sample."
        )
    if len({str(name) for name in names}) < len(names):
        raise InputError("two different groups have the same name as text: rename one.")
    if len(samples) >= _MANY and len(names) > _MOSTLY * len(samples):
        raise InputError(
            f"these {len(samples):,} samples are in {len(names):,} groups, nearly every one in a group of its own: "
            "give larger groups, for example by ddm.groups.by_quantile for numbers or ddm.groups.by_date for dates."
        )
    return Partition(
        numbers.astype(np.int64),
        tuple(str(name) for name in names),
        _classes_of_groups(samples, numbers, len(names)),
        samples.classes,
    )


def _classes_of_groups(samples: Samples, numbers: np.ndarray, count: int) -> np.ndarray | None:
    """The class of each group ``(K,)``; None if samples have no classes, or a group has several."""
    if not samples.has_classes:
        return None
    labels = samples.labels.numpy()
    first = np.zeros(count, dtype=labels.dtype)
    first[numbers[::-1]] = labels[::-1]
    return first if bool((labels == first[numbers]).all()) else None


def from_rows(samples: Samples, groups: Mapping[Any, Any]) -> Partition:
    """The user's own groups: the positions of each group's samples in the training set, or a mask of the samples.

    Groups may overlap, and samples may be in no group: no question removes those.
    """
    if not groups:
        raise InputError("there are no groups: give a mapping of names to positions in the training set.")
    names = tuple(str(name) for name in groups)
    if len(set(names)) < len(names):
        raise InputError("two different groups have the same name as text: rename one.")
    listed = tuple(_positions(name, rows, len(samples)) for name, rows in groups.items())
    first = first_groups(listed, len(samples))
    if sum(map(len, listed)) == len(samples) and bool((first >= 0).all()):
        return Partition(first, names, _classes_of_groups(samples, first, len(names)), samples.classes)
    return Partition(first, names, None, samples.classes, listed)


def first_groups(listed: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The first group of each of ``count`` samples ``(n,)``, of groups given by positions; −1 for a sample in none."""
    first = np.full(count, -1, dtype=np.int64)
    for number in reversed(range(len(listed))):
        first[listed[number]] = number
    return first


def _positions(name: Any, given: Any, count: int) -> np.ndarray:
    """Positions of a group's samples, sorted, each once; refused if they are none or not those of ``count`` samples."""
    rows = np.asarray(given)
    if rows.dtype == bool and rows.shape == (count,):
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or not rows.size:
        raise InputError(f"group '{name}' has no samples: give their positions in the training set.")
    if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count:
        raise InputError(
            f"group '{name}' must hold whole numbers from 0 to {count - 1}, positions in the training set."
        )
    rows = np.unique(rows.astype(np.int64))
    if len(rows) == count:
        raise InputError(f"group '{name}' holds every sample, and nothing is left without it: make it smaller.")
    return rows


Cut = Callable[[np.ndarray, int, int], np.ndarray]
"""``cut(rows, count, least)`` splits the samples at ``rows`` into ``count`` clusters of ``least`` samples or more.

It returns the cluster of each row.
"""


def least_size(labels: np.ndarray, clusters: int) -> int:
    """The least size of a group when each class is split into ``clusters``.

    It is half of the mean cluster size in the largest class, 16 at most. So rare classes and outliers are not split
    into single samples, and whoever asks for small groups still gets them.
    """
    mean = int(np.bincount(labels).max()) // clusters
    return min(max(1, mean // 2), SMALL_GROUP)


def _fill_small_clusters(points: np.ndarray, clusters: np.ndarray, least: int) -> np.ndarray:
    """The cluster of each of n points, after clusters of fewer than ``least`` points took points from larger ones.

    Each time, the smallest cluster takes the point whose squared distance to a centroid grows least by the move.
    """
    _, clusters, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) == 1 or sizes.min() >= least:
        return clusters
    distances = _squared_distances(points, clusters, len(sizes))
    while sizes.min() < least:
        smallest = int(sizes.argmin())
        free = np.flatnonzero(sizes[clusters] > least)
        moved = free[(distances[free, smallest] - distances[free, clusters[free]]).argmin()]
        sizes[clusters[moved]] -= 1
        sizes[smallest] += 1
        clusters[moved] = smallest
    return clusters


def _squared_distances(points: np.ndarray, clusters: np.ndarray, count: int) -> np.ndarray:
    """Squared distances ``(n, count)`` of points ``(n, F)`` to the centroids of their clusters."""
    centroids = np.stack([points[clusters == k].mean(0) for k in range(count)])
    return np.stack([np.square(points - centroid).sum(1) for centroid in centroids], axis=1)


def _split_classes(samples: Samples, clusters: int, cut: Cut) -> Partition:
    """Split each class by ``cut``. Empty clusters are dropped, and a class with few samples has fewer clusters."""
    if clusters < 1:
        raise InputError(f"clusters must be at least 1, not {clusters}.")
    labels = samples.labels.numpy() if samples.has_classes else np.zeros(len(samples), dtype=np.int64)
    names_of = [f"{name}/" for name in samples.classes] if samples.has_classes else ["cluster "]
    groups = np.empty(len(labels), dtype=np.int64)
    names: list[str] = []
    parents: list[int] = []
    short = []
    least = least_size(labels, clusters)
    for label, rows, parts in _cut_classes(labels, clusters, least, cut):
        distinct, numbers = np.unique(parts, return_inverse=True)
        groups[rows] = len(names) + numbers
        names += [f"{names_of[label]}{c}" for c in range(len(distinct))]
        parents += [int(label)] * len(distinct)
        if len(distinct) < clusters:
            short.append(f"{names_of[label].strip(' /')} ({len(distinct)})")
    if short:
        warnings.warn(
            f"too few distinct samples for {clusters} clusters of at least {least} in {len(short)} classes: "
            f"{', '.join(short[:5])}{', …' if len(short) > 5 else ''} have fewer clusters.",
            stacklevel=3,
        )
    return Partition(groups, tuple(names), np.array(parents) if samples.has_classes else None, samples.classes)


def _cut_classes(
    labels: np.ndarray, clusters: int, least: int, cut: Cut
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each class: its label, the positions of its samples, and the cluster of each of these samples."""
    classes = np.unique(labels)
    with bar("clustering", len(classes)) as advance:
        for label in classes:
            rows = np.flatnonzero(labels == label)
            yield label, rows, cut(rows, min(clusters, max(1, len(rows) // least)), least)
            advance(1)
