"""The partition D_1 … D_K of the training set into groups.

By default each class ``l`` is split into ``C`` clusters by k-means on features of the target's penultimate layer,
so that group ``(l, c)`` is named ``class/cluster``. The paper's "w/o cluster" splits each class by sequence.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddm.compute.progress import bar
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.networks import penultimate
from ddm.training.target import Target

Group = int | str
"""A group as users name it: its number, or its name such as ``3/7``."""

Features = nn.Module | Callable[[Tensor], Tensor] | str | None
"""Where features come from: the target (None), a module or callable, or ``hf:NAME`` for a pre-trained network."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The group of each training sample.

    groups: ``(n,)`` int64, each in ``0 … K − 1``; every group has a sample
    names:  a name for each group
    parents: ``(K,)`` the class each group lies in, or None where groups cut across classes
    classes: a name for each class
    """

    groups: np.ndarray
    names: tuple[str, ...]
    parents: np.ndarray | None
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Samples in each group ``(K,)``."""
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
        """Positions of all samples group by group, and where each group starts ``(K + 1,)``."""
        return np.argsort(self.groups, kind="stable"), np.concatenate([[0], np.cumsum(self.sizes)])

    def index(self, group: Group) -> int:
        """The number of a group given by name or number; text that is both is a name."""
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
        """Which groups are named ``(K,)``, as booleans."""
        chosen = [groups] if isinstance(groups, (int, np.integer, str)) else list(groups)
        mask = np.zeros(len(self), dtype=bool)
        mask[[self.index(group) for group in chosen]] = True
        return mask

    def removal(self, groups: Group | Iterable[Group]) -> np.ndarray:
        """Which groups are to be removed ``(K,)``, as booleans; at least one must stay."""
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
        """The level above: a group per class, or None where groups cut across classes."""
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
    """The partition that ``DistilledDatamodel.fit`` is asked for."""
    if isinstance(partition, Partition):
        if len(partition.groups) != len(samples):
            raise InputError(
                f"the partition is of {len(partition.groups)} samples, the training set has {len(samples)}."
            )
        return partition
    if not isinstance(partition, str):
        return given(samples, partition)
    if partition == "kmeans":
        return kmeans(samples, features_of(samples, features, target), clusters, seed)
    if partition == "sequence":
        return sequential(samples, clusters)
    if partition == "class":
        return classwise(samples)
    raise InputError(f"there is no partition '{partition}': use kmeans, class, sequence or your own groups.")


def classwise(samples: Samples) -> Partition:
    """A group per class."""
    labels = samples.labels.numpy()
    present, groups = np.unique(labels, return_inverse=True)
    return Partition(groups, tuple(samples.classes[c] for c in present), present, samples.classes)


def sequential(samples: Samples, clusters: int) -> Partition:
    """Each class cut into ``clusters`` runs of equal length in the order of the training set."""

    def cut(rows: np.ndarray, count: int) -> np.ndarray:
        return np.arange(len(rows)) * count // len(rows)

    return _within_classes(samples, clusters, cut)


def kmeans(samples: Samples, features: np.ndarray, clusters: int, seed: int = 0) -> Partition:
    """Each class split into ``clusters`` by k-means on ``features (n, F)``."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    def cut(rows: np.ndarray, count: int) -> np.ndarray:
        # One thread: with several, sums are added in another order and ties break differently.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: handled below
            found: np.ndarray = KMeans(count, n_init=4, random_state=seed).fit_predict(features[rows])
        return found

    return _within_classes(samples, clusters, cut)


def given(samples: Samples, groups: Sequence[Any] | np.ndarray) -> Partition:
    """Groups the user knows: a label for each training sample, of any kind that sorts."""
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


def features_of(samples: Samples, source: Features, target: Target | None = None, batch_size: int = 512) -> np.ndarray:
    """Features ``(n, F)`` of every sample from a network, a callable, the hub, or the target's penultimate layer."""
    extract = _extractor(source, target)
    parts = []
    rows = torch.arange(len(samples)).split(batch_size)
    with torch.no_grad(), evaluating(source), bar("features", len(rows)) as advance:
        for part in rows:
            found = extract(samples.batch(part)[0])
            if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != len(part):
                raise InputError("features must be a tensor with a row for each input.")
            parts.append(found.detach().flatten(1).cpu().float())
            advance(1)
    features = torch.cat(parts).numpy()
    if not np.isfinite(features).all():
        raise InputError("the features contain NaN or infinite values: use another feature extractor.")
    return features


def _extractor(source: Features, target: Target | None) -> Callable[[Tensor], Tensor]:
    if source is None:
        if target is None:
            raise InputError("clustering needs features: give a target, a module or a callable.")
        network, like = target.network, target.theta
        return lambda x: penultimate(network, x.to(like))
    if isinstance(source, str):
        from ddm.groups.pretrained import image_features

        return image_features(source)
    return source


@contextlib.contextmanager
def evaluating(source: Features) -> Iterator[None]:
    """A module in evaluation mode, and back in the mode it was in."""
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    if isinstance(source, nn.Module):
        source.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _within_classes(samples: Samples, clusters: int, cut: Callable[[np.ndarray, int], np.ndarray]) -> Partition:
    """Number the clusters that ``cut(rows, count)`` finds within each class, skipping empty ones."""
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
    """Each class with the positions of its samples and the cluster of each."""
    classes = np.unique(labels)
    with bar("clustering", len(classes)) as advance:
        for label in classes:
            rows = np.flatnonzero(labels == label)
            yield label, rows, cut(rows, min(clusters, len(rows)))
            advance(1)
