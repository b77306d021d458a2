"""Label checks: which groups and samples look mislabelled.

The model without a group has not learned the group's labels, so it can judge them. It doubts the labels of a rare
cluster too, but held-out samples of that class need the cluster, and no held-out sample needs wrong labels. With

    w_κ = Σ (probability of the likeliest class − probability of the label) over the samples of group κ,
    c_κ = what removing the group costs held-out samples,
    u   = the median of c/w over groups, weighted by w,

w_κ is about the number of doubted labels, and the *backing* of the group is

    backing_κ = c_κ / (u · w_κ).

1 is usual, 0 means that no held-out sample needs the group, and negative that removing it helps. A group whose labels
are mostly doubted and have little backing looks mislabelled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.compute import progress
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.inputs import at_once
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.partition import Partition

_MAX_AGREEMENT, _MIN_DOUBT = 0.5, 0.15
"""A group's labels are mostly doubted if the model agrees with fewer than this fraction of them, and if the doubt per
sample exceeds the second number."""

_MAX_BACKING, _MAX_BACKING_OF_REPEATS = 0.25, 0.5
"""A doubted group looks mislabelled if its backing is below the first number. If a group that passes this test has the
same label and the same likely class, the second number applies instead. On digits, with networks of at least 75 %
accuracy, this put planted groups first in every trial and rarely named a clean one."""

_MIN_BACKING = -1.0
"""Backing is clipped here, so that a gain counts at most as much as the doubt itself."""


@dataclass(frozen=True)
class Suspect:
    """A training sample whose label is doubted.

    row:         its position in the training set
    group:       the harmful or mislabelled group it belongs to
    label:       its label
    likely:      the class that the model without its group predicts
    probability: the probability that this model gives to the label
    id:          the name of the sample, such as its path
    """

    row: int
    group: str
    label: str
    likely: str
    probability: float
    id: str = ""


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """Predictions of the model without a group for the group's own m training samples.

    rows:          positions of the samples in the training set ``(m,)``
    labels:        their labels ``(m,)``
    probabilities: predicted probability of each class ``(m, L)``
    """

    rows: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray

    @property
    def likely(self) -> np.ndarray:
        """The likeliest class of each sample ``(m,)``."""
        likely: np.ndarray = self.probabilities.argmax(1)
        return likely

    @property
    def label_probabilities(self) -> np.ndarray:
        """The probability of each sample's label ``(m,)``."""
        probabilities: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return probabilities

    @property
    def agreement(self) -> float:
        """Fraction of samples whose label is the likeliest class."""
        return float((self.likely == self.labels).mean())

    @property
    def doubt(self) -> float:
        """w_κ: probability of the likeliest class minus probability of the label, summed over samples."""
        return float((self.probabilities.max(1) - self.label_probabilities).sum())

    @property
    def doubtful(self) -> bool:
        """True if the model disagrees with most labels and is clearly surer of another class."""
        return self.agreement < _MAX_AGREEMENT and self.doubt > _MIN_DOUBT * len(self.rows)

    @property
    def likely_instead(self) -> int | None:
        """The most frequent prediction for samples whose label the model disagrees with; None if it agrees with all."""
        others = self.likely[self.likely != self.labels]
        return int(np.bincount(others).argmax()) if len(others) else None


def check_labels(models: Models, partition: Partition, train: Samples) -> dict[int, LabelCheck]:
    """The label check of every group that can be removed, by the group's number."""
    usable = np.flatnonzero(models.usable)
    removed = designs.leave_one_out(len(partition))
    checks = {}
    with progress.bar("labels of groups", len(usable)) as advance, progress.silent():
        for k in usable.tolist():
            rows = partition.rows(k)
            parts = torch.as_tensor(rows).split(at_once(len(rows), train.bytes_each))
            outputs = [models.outputs(removed[k : k + 1], x)[0] for x, _ in train.batches(parts)]
            probabilities = torch.cat(outputs).double().softmax(1)
            check_predictions(probabilities, len(partition.classes))
            checks[k] = LabelCheck(rows, train.labels[rows].numpy(), probabilities.cpu().numpy())
            advance(1)
    return checks


def check_predictions(outputs: Tensor, classes: int) -> None:
    """Refuse outputs ``(n, L)`` that predict a class beyond those of the data: a network may have more outputs."""
    largest = int(outputs.argmax(1).max())
    if largest >= classes:
        raise InputError(
            f"the model predicts class {largest}, but the classes of the data are 0 to {classes - 1}: name all "
            f"{outputs.shape[1]} outputs with classes= when you make the samples, or train a network with {classes} "
            "outputs."
        )


def find_mislabelled(
    checks: Mapping[int, LabelCheck], effects: Mapping[str, np.ndarray], partition: Partition, present: np.ndarray
) -> list[int]:
    """Numbers of the groups that look mislabelled, those with most doubted labels first.

    effects: of removing each group on the mean ``loss (K,)`` and on the ``class loss (K, L)`` of held-out samples
    present: classes ``(L,)`` with held-out samples; groups of other classes cannot be judged
    """
    backing = _backing(checks, effects)
    doubtful = [k for k, check in checks.items() if check.doubtful and present[check.labels].all()]
    mistakes = {k: _mistake(k, checks[k], partition) for k in doubtful}
    repeated = {mistakes[k] for k in doubtful if backing[k] < _MAX_BACKING}
    limits = {k: _MAX_BACKING_OF_REPEATS if mistakes[k] in repeated else _MAX_BACKING for k in doubtful}
    mislabelled = [k for k in doubtful if backing[k] < limits[k]]
    return sorted(mislabelled, key=lambda k: -checks[k].doubt * (1 - backing[k]))


def _mistake(k: int, check: LabelCheck, partition: Partition) -> tuple[int | None, ...]:
    """The label and the likely class of a group; unique for a group that cuts across classes."""
    return (k,) if partition.parents is None else (int(partition.parents[k]), check.likely_instead)


def _backing(checks: Mapping[int, LabelCheck], effects: Mapping[str, np.ndarray]) -> dict[int, float]:
    """Backing of each group: the mean of its backing by all held-out samples and by those of the group's classes."""
    doubt = np.array([check.doubt for check in checks.values()])
    overall = np.array([effects["loss"][k] for k in checks])
    same_class = np.array([effects["class loss"][k][check.labels].mean() for k, check in checks.items()])
    backing = (_relative_cost(overall, doubt) + _relative_cost(same_class, doubt)) / 2
    return dict(zip(checks, backing.tolist(), strict=True))


def _relative_cost(costs: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """c_κ / (u · w_κ) ``(K,)`` of costs and doubts ``(K,)``."""
    rates = costs / np.maximum(doubt, 1e-9)
    order = np.argsort(rates, kind="stable")
    middle = np.searchsorted(np.cumsum(doubt[order]), doubt.sum() / 2)
    usual = rates[order][min(middle, len(order) - 1)]
    relative: np.ndarray = np.maximum(rates / max(usual, 1e-9), _MIN_BACKING)
    return relative


def find_suspects(
    checks: Mapping[int, LabelCheck], partition: Partition, groups: Collection[str]
) -> tuple[Suspect, ...]:
    """Samples of these groups whose label is not the likeliest class, the least likely label first."""
    suspects = [
        suspect
        for k, check in checks.items()
        if partition.names[k] in groups
        for suspect in _suspects_of(check, partition.names[k], partition.classes)
    ]
    return tuple(sorted(suspects, key=lambda suspect: (suspect.probability, suspect.row)))


def _suspects_of(check: LabelCheck, group: str, classes: tuple[str, ...]) -> list[Suspect]:
    samples = zip(check.rows, check.labels, check.likely, check.label_probabilities, strict=True)
    return [
        Suspect(int(row), group, classes[label], classes[likely], float(probability))
        for row, label, likely, probability in samples
        if label != likely
    ]
