"""Confusions: samples of one class that the model takes for another, and the groups that cause each kind of error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.answers.objectives import Measure
from ddm.groups.partition import Partition

_PAIRS = 10
"""Maximum number of kinds of errors that a diagnosis explains."""


@dataclass(frozen=True)
class Confusion:
    """One kind of error: samples of class ``true`` that the model takes for class ``predicted``.

    count:  number of these samples
    rows:   their positions among the samples asked about
    causes: each group with the effect of its removal on the mean probability of the wrong class over these samples,
            most negative first (negative: removing the group makes the error less likely)
    """

    true: str
    predicted: str
    count: int
    rows: tuple[int, ...]
    causes: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        causes = [{"group": group, "effect": effect} for group, effect in self.causes]
        return asdict(self) | {"rows": list(self.rows), "causes": causes}


@dataclass(frozen=True, eq=False)
class ConfusedPair:
    """A kind of error before its causes are known: numbers of its two classes, and positions of its samples."""

    true: int
    predicted: int
    rows: Tensor

    def explain(self, partition: Partition, effects: np.ndarray) -> Confusion:
        """The confusion with the effect ``(K,)`` of removing each group; groups with NaN are left out."""
        order = [k for k in np.argsort(effects, kind="stable") if np.isfinite(effects[k])]
        return Confusion(
            true=partition.classes[self.true],
            predicted=partition.classes[self.predicted],
            count=len(self.rows),
            rows=tuple(self.rows.tolist()),
            causes=tuple((partition.names[k], float(effects[k])) for k in order),
        )


def confusion_matrix(outputs: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """Number of samples by true and predicted class ``(L, L)``."""
    cells = labels * classes + outputs.argmax(1)
    counts: np.ndarray = cells.cpu().bincount(minlength=classes**2).reshape(classes, classes).numpy()
    return counts


def frequent_pairs(outputs: Tensor, labels: Tensor, counts: np.ndarray) -> list[ConfusedPair]:
    """The most frequent kinds of errors, from the confusion matrix ``counts``."""
    errors = counts - np.diag(np.diag(counts))
    cells = np.argsort(-errors, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(cell), len(counts)) for cell in cells if errors.flat[cell] > 0]
    predicted = outputs.argmax(1)
    return [ConfusedPair(t, p, ((labels == t) & (predicted == p)).nonzero()[:, 0]) for t, p in pairs]


def wrong_class_probabilities(pairs: Sequence[ConfusedPair]) -> Measure:
    """Measures the mean probability of the wrong class over the samples of each kind of error ``(E,)``."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        means = [outputs[pair.rows].softmax(1)[:, pair.predicted].mean() for pair in pairs]
        return torch.stack(means) if means else outputs.new_empty(0)

    return measure
