"""The subject of a page: a datamodel, its data, what is known about its groups, and the samples that may be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ddm.answers.attribution import Attribution
from ddm.answers.diagnosis import Diagnosis
from ddm.data.samples import Data, Samples
from ddm.data.tasks import Task
from ddm.datamodel import DistilledDatamodel
from ddm.groups.features import features_of
from ddm.groups.partition import Partition
from ddm.plots import units
from ddm.report.numbers import between, points, signed
from ddm.report.pictures import SMALL
from ddm.report.shown import SHORT, Item, Shown


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

    diagnosis: findings on the validation samples; None if samples have no classes
    split:     name of the split of the single predictions
    asked:     the samples of that split
    shown:     shows samples, if they may be shown
    attributed: without classes, the effects on the loss and on a second figure of the validation samples, by its name
    """

    datamodel: DistilledDatamodel
    data: Data
    diagnosis: Diagnosis | None
    split: str
    asked: Samples
    shown: Shown
    attributed: Mapping[str, Attribution] = field(default_factory=dict)

    @property
    def partition(self) -> Partition:
        """The groups."""
        return self.datamodel.partition

    @property
    def task(self) -> Task:
        """The target's task, which says what outputs mean."""
        return self.datamodel.target.task

    @property
    def diagnosed(self) -> Diagnosis:
        """The diagnosis, for sections about classes."""
        assert self.diagnosis is not None
        return self.diagnosis

    @cached_property
    def features(self) -> np.ndarray:
        """Inputs of the network's last layer for each training sample ``(n, F)``."""
        return features_of(self.data.train, None, self.datamodel.target)

    @cached_property
    def centres(self) -> np.ndarray:
        """The mean features of each group ``(K, F)``."""
        return np.stack([self.features[self.partition.rows(k)].mean(0) for k in range(len(self.partition))])

    @property
    def second(self) -> str:
        """The figure whose effects are shown beside those on the loss."""
        return "accuracy" if self.diagnosis is not None else next(name for name in self.attributed if name != "loss")

    def effects(self, what: str) -> np.ndarray:
        """Effects ``(K,)`` of removing each group on the loss or the second figure of the validation samples."""
        return self.attributed[what].scores if self.diagnosis is None else self.diagnosis.effects[what]

    def value(self, what: str) -> float:
        """The loss or the second figure with all groups."""
        if self.diagnosis is not None:
            return self.diagnosis.loss if what == "loss" else self.diagnosis.accuracy
        return float(self.attributed[what].baseline[0])

    def is_fraction(self, what: str) -> bool:
        """True if a figure is a fraction, whose changes people read in points."""
        return what == "accuracy" if self.diagnosis is not None else self.attributed[what].fraction

    def effect_text(self, what: str, number: int) -> str:
        """The effect of a group with its sign and unit."""
        effect = float(self.effects(what)[number])
        if self.is_fraction(what):
            return points(effect)
        return signed(effect) if self.diagnosis is not None else units.minus(units.change_text(effect, False))

    def intervals(self, what: str) -> Attribution | None:
        """The effects on the loss or the second figure with their intervals; None without retrainings."""
        if self.diagnosis is not None:
            return self.diagnosis.intervals.get(what)
        found = self.attributed[what]
        return found if found.has_intervals else None

    @property
    def loss(self) -> Attribution | None:
        """The effects on the validation loss with their intervals; None without retrainings."""
        return self.intervals("loss")

    def certainty(self, what: str, number: int) -> Certainty:
        """How sure the effect of a group on the loss or the second figure is."""
        return certainty(self.intervals(what), number)

    def is_bad(self, group: str) -> bool:
        """True if the diagnosis calls the group harmful or its labels noisy."""
        if self.diagnosis is None:
            return False
        return group in {finding.group for finding in (*self.diagnosis.harmful, *self.diagnosis.noisy)}

    def typical(self, number: int, count: int) -> list[int]:
        """The training samples of a group nearest to its mean."""
        rows = self.partition.rows(number)
        distances = np.square(self.features[rows] - self.centres[number]).sum(1)
        return [int(row) for row in rows[np.argsort(distances, kind="stable")[:count]]]

    def thumbnails(self, group: str, count: int) -> list[Item]:
        """Small pictures of the most typical samples of a group; of texts and rows only the first."""
        if not self.shown.shown:
            return []
        rows = self.typical(self.partition.index(group), count if self.shown.images else 1)
        return self.shown.of(self.data.train, rows, SMALL, SHORT)
