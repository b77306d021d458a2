"""What every way to score groups is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddm.datasets.samples import Samples
from ddm.partition import Partition
from ddm.target import Target


@dataclass(frozen=True)
class Question:
    """What is asked of a method: which groups of ``train`` move ``target`` on each test sample, and on validation.

    target:     ℳ with its trajectory, trained on all of ``train``
    train:      n training samples, split into K groups by ``partition``
    test:       m samples that are each asked about
    validation: samples whose mean loss is asked about
    seed:       of everything a method draws
    """

    target: Target
    train: Samples
    partition: Partition
    test: Samples
    validation: Samples
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Scores:
    """What a method says of removing each of K groups.

    shift:      how far the prediction for each test sample moves ``(K, m)``; only the order over groups counts
    loss:       effect on the loss of each test sample ``(K, m)``: positive = removing the group raises it
    validation: effect on the mean validation loss ``(K,)``
    bytes:      what the method keeps between questions
    """

    shift: np.ndarray
    loss: np.ndarray
    validation: np.ndarray
    bytes: int = 0


Baseline = Callable[[Question], Scores]


class CannotRun(Exception):  # noqa: N818
    """A method does not fit this network or this machine; the message is one sentence that says why."""
