"""The subject of a page: a datamodel, its data, its diagnosis, and the pictures that may be shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddm.answers.diagnosis import Diagnosis
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.groups.features import features_of
from ddm.groups.partition import Partition
from ddm.report.pictures import SMALL, Pictures


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
