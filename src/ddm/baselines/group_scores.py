"""Helpers that turn scores of samples into scores of groups, and give them a sign by class."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ddm.baselines.protocol import ScoreRequest, Scores
from ddm.groups.partition import Partition


def sum_over_groups(partition: Partition, values: np.ndarray | Tensor) -> np.ndarray:
    """Sum values of samples ``(n, ...)`` over each group ``(K, ...)``."""
    values = np.asarray(values, dtype=np.float64)
    return np.stack([values[partition.rows(k)].sum(0) for k in range(len(partition))])


def mean_over_groups(partition: Partition, values: np.ndarray | Tensor) -> np.ndarray:
    """Average values of samples ``(n, F)`` over each group ``(K, F)``."""
    means: np.ndarray = sum_over_groups(partition, values) / partition.sizes[:, None]
    return means


def group_classes(request: ScoreRequest) -> np.ndarray:
    """The class of each group ``(K,)``; a group that spans several classes counts as its most frequent class."""
    partition = request.partition
    if partition.parents is not None:
        return partition.parents
    counts = sum_over_groups(partition, np.eye(len(request.train.classes))[request.train.labels.numpy()])
    majority: np.ndarray = counts.argmax(1)
    return majority


def class_signs(request: ScoreRequest, labels: Tensor) -> np.ndarray:
    """Signs ``(K, m)`` for labels ``(m,)``: +1 where the group has the sample's class or there are none, −1 elsewhere.

    Removing data that resemble a sample raises its loss if they share its label, and lowers it if they do not.
    """
    if not request.train.has_classes:
        return np.ones((len(request.partition), len(labels)))
    return np.where(group_classes(request)[:, None] == labels.numpy()[None, :], 1.0, -1.0)


def scores_from_loss_effects(loss: np.ndarray, validation: np.ndarray, stored_bytes: int = 0) -> Scores:
    """Scores of a method that only predicts effects on the loss ``(K, m)``: |effect| stands in for the shift."""
    return Scores(np.abs(loss), loss, validation, stored_bytes)
