"""The interface of a baseline: a ``ScoreRequest`` goes in, ``Scores`` come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddm.baselines.packing import Packing
from ddm.data.samples import Samples
from ddm.groups.partition import Partition
from ddm.training.target import Target


@dataclass(frozen=True)
class ScoreRequest:
    """A request to score how removing each group of ``train`` changes ``target`` on test and validation samples.

    target:     ℳ with its trajectory, trained on all of ``train``
    train:      n training samples, split into K groups by ``partition``
    test:       m samples, each scored separately
    validation: samples whose mean loss is scored
    seed:       random seed of the method
    """

    target: Target
    train: Samples
    partition: Partition
    test: Samples
    validation: Samples
    seed: int = 0

    @cached_property
    def packing(self) -> Packing:
        """Turns inputs into single tensors, for other tools."""
        return Packing(self.train.batch([0])[0])


@dataclass(frozen=True, eq=False)
class Scores:
    """A method's predictions of what removing each of K groups does.

    shift:      how far the prediction for each test sample moves ``(K, m)``; only the order over groups matters
    loss:       change of each test sample's loss ``(K, m)``: positive = removing the group raises it
    validation: change of the mean validation loss ``(K,)``
    bytes:      size of the data that the method stores between requests
    """

    shift: np.ndarray
    loss: np.ndarray
    validation: np.ndarray
    bytes: int = 0


Baseline = Callable[[ScoreRequest], Scores]


class CannotRun(Exception):  # noqa: N818
    """The method does not support this network or this machine; the message says why in one sentence."""
