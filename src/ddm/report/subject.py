"""What a page is about: a datamodel, its data, what was found out about it, and what may be shown."""

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

    diagnosis: what was found on the validation samples
    asked:     the samples that single predictions are taken from, of the split of that name
    pictures:  of samples, where they may be shown
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
        """What the target's last layer is given, for each training sample ``(n, F)``."""
        return features_of(self.data.train, None, self.datamodel.target)

    @cached_property
    def centres(self) -> np.ndarray:
        """The mean features of each group ``(K, F)``."""
        return np.stack([self.features[self.partition.rows(k)].mean(0) for k in range(len(self.partition))])

    def typical(self, number: int, count: int) -> list[int]:
        """Training samples of a group that lie nearest to its mean."""
        rows = self.partition.rows(number)
        distances = np.square(self.features[rows] - self.centres[number]).sum(1)
        return [int(row) for row in rows[np.argsort(distances, kind="stable")[:count]]]

    def thumbnails(self, group: str, count: int) -> list[str]:
        """Small pictures of such samples."""
        if not self.pictures.shown:
            return []
        return self.pictures.of(self.data.train, self.typical(self.partition.index(group), count), SMALL)
