"""The subject of a page: a datamodel, its data, its diagnosis, and the pictures that may be shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddm.answers.attribution import Attribution
from ddm.answers.diagnosis import Diagnosis
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.groups.features import features_of
from ddm.groups.partition import Partition
from ddm.report.numbers import between
from ddm.report.pictures import SMALL, Pictures


@dataclass(frozen=True)
class Certainty:
    """How sure an effect is.

    text:  its interval, in points for fractions, or ``measured``; empty if it is not known
    noise: True if the effect may be noise
    """

    text: str = ""
    noise: bool = False


def certainty(found: Attribution | None, number: int) -> Certainty:
    """How sure the effect of a group is."""
    ends = None if found is None else found.interval(number)
    if found is None or ends is None:
        return Certainty()
    low, high = (100 * end if found.fraction else end for end in ends)
    text = "measured" if found.measured_alone[number] else between(low, high, 1 if found.fraction else 4)
    return Certainty(text, bool(found.mark(number)))


@dataclass(frozen=True)
class Subject:
    """The subject of a page.

    diagnosis: findings on the validation samples
    split:     name of the split of the single predictions
    asked:     the samples of that split
    pictures:  encodes samples, if they may be shown
    """

    datamodel: DistilledDatamodel
    data: Data
    diagnosis: Diagnosis
    split: str
    asked: Samples
    pictures: Pictures

    @property
    def partition(self) -> Partition:
        """The groups."""
        return self.datamodel.partition

    @cached_property
    def features(self) -> np.ndarray:
        """Inputs of the network's last layer for each training sample ``(n, F)``."""
        return features_of(self.data.train, None, self.datamodel.target)

    @cached_property
    def centres(self) -> np.ndarray:
        """The mean features of each group ``(K, F)``."""
        return np.stack([self.features[self.partition.rows(k)].mean(0) for k in range(len(self.partition))])

    @property
    def loss(self) -> Attribution | None:
        """The effects on the validation loss with their intervals; None without retrainings."""
        return self.diagnosis.intervals.get("loss")

    def certainty(self, what: str, number: int) -> Certainty:
        """How sure the effect of a group on the loss or the accuracy is."""
        return certainty(self.diagnosis.intervals.get(what), number)

    def is_bad(self, group: str) -> bool:
        """True if the diagnosis calls the group harmful or its labels noisy."""
        return group in {finding.group for finding in (*self.diagnosis.harmful, *self.diagnosis.noisy)}

    def typical(self, number: int, count: int) -> list[int]:
        """The training samples of a group nearest to its mean."""
        rows = self.partition.rows(number)
        distances = np.square(self.features[rows] - self.centres[number]).sum(1)
        return [int(row) for row in rows[np.argsort(distances, kind="stable")[:count]]]

    def thumbnails(self, group: str, count: int) -> list[str]:
        """Small pictures of the most typical samples of a group."""
        if not self.pictures.shown:
            return []
        return self.pictures.of(self.data.train, self.typical(self.partition.index(group), count), SMALL)
