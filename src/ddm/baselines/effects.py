"""From what a method computes to what it says: sums over groups, and signs by class."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ddm.baselines.protocol import Question, Scores
from ddm.partition import Partition


def sums(partition: Partition, values: np.ndarray | Tensor) -> np.ndarray:
    """Σ over each group's samples ``(K, ...)`` of values ``(n, ...)``."""
    values = np.asarray(values, dtype=np.float64)
    totals = np.zeros((len(partition), *values.shape[1:]))
    np.add.at(totals, partition.groups, values)
    return totals


def means(partition: Partition, values: np.ndarray | Tensor) -> np.ndarray:
    """The mean over each group's samples ``(K, F)`` of values ``(n, F)``."""
    found: np.ndarray = sums(partition, values) / partition.sizes[:, None]
    return found


def classes_of(question: Question) -> np.ndarray:
    """The class of each group ``(K,)``: the one it lies in, or that of most of its samples."""
    partition = question.partition
    if partition.parents is not None:
        return partition.parents
    counts = sums(partition, np.eye(len(question.train.classes))[question.train.labels.numpy()])
    majority: np.ndarray = counts.argmax(1)
    return majority


def own(question: Question, labels: Tensor) -> np.ndarray:
    """+1 where a group is of the class of a sample and −1 where it is not ``(K, m)``, for labels ``(m,)``.

    Removing data like a sample raises its loss if they have its label, and lowers it if they have another.
    """
    return np.where(classes_of(question)[:, None] == labels.numpy()[None, :], 1.0, -1.0)


def influences(loss: np.ndarray, validation: np.ndarray, kept: int = 0) -> Scores:
    """What a method says that predicts effects on the loss ``(K, m)``: a prediction moves as far as its loss does."""
    return Scores(np.abs(loss), loss, validation, kept)
