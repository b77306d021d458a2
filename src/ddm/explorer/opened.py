"""Opened: a run with what every answer about it needs, computed once."""

from __future__ import annotations

import contextlib
import threading
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.explorer.quota import Room
from ddm.runs.folder import EXACT
from ddm.truth.retraining import Retraining

MOST_TESTED = 2000
"""Test images that are offered and counted; of larger test sets so many, evenly spaced."""

COUNTERFACTUALS = "counterfactuals"
"""The folder of a run that saved models go to."""

MOST_KEPT = 2**32
"""Bytes of models that visitors may add to a run, saved and retrained ones."""

_BATCH = 512


class Opened:
    """A run, its datamodel and its data, for any number of visitors.

    Any thread may ask the datamodel at any time. The locks only keep visitors from computing the same thing twice, and
    slow work has locks of its own, so that quick answers do not wait for it.

    rows:       positions ``(n,)`` of the test images that are offered and counted
    lock:       held while a quick answer is computed
    ordering:   held while training samples are ordered
    retraining: held while a network is retrained, one at a time
    room:       where visitors keep models
    """

    def __init__(self, run: Path, datamodel: DistilledDatamodel, data: Data) -> None:
        if len(data.train.shape) != 3:
            raise InputError(f"ddm explore shows images, not inputs of shape {data.train.shape}: use ddm trace.")
        self.run, self.datamodel, self.data = run, datamodel, data
        count = len(data.test)
        self.rows = np.unique(np.linspace(0, count - 1, min(count, MOST_TESTED)).round().astype(int))
        self.lock, self.ordering, self.retraining = threading.RLock(), threading.Lock(), threading.Lock()
        self.room = Room([run / COUNTERFACTUALS, run / EXACT], MOST_KEPT)
        self.without = lru_cache(maxsize=4)(self._without)
        self.counts = lru_cache(maxsize=256)(self._counts)

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each label."""
        return self.data.classes

    @property
    def labels(self) -> np.ndarray:
        """The class ``(n,)`` of each image of ``rows``."""
        labels: np.ndarray = self.data.test.labels[torch.as_tensor(self.rows)].numpy()
        return labels

    @cached_property
    def predicted(self) -> np.ndarray:
        """What the target says ``(n,)`` of each image of ``rows``."""
        with self.lock:
            return self._classify(self.datamodel.target.network)

    def usable(self, group: str) -> bool:
        """Whether a group can be removed: its matching was not stopped."""
        return group not in self.datamodel.synset.stopped

    def exact(self) -> Retraining:
        """Retraining, its models kept in the run. One process: the page shows how long it takes."""
        return Retraining(self.datamodel.target, self.data.train, self.run / EXACT, workers=1)

    @cached_property
    def seconds(self) -> float | None:
        """About how long one retraining takes."""
        with self.lock:
            return self.exact().estimate_seconds()

    def _without(self, remove: tuple[str, ...]) -> nn.Module:
        """The model without some groups."""
        with self.lock:
            return self.datamodel.counterfactual(remove)

    def _counts(self, remove: tuple[str, ...]) -> np.ndarray:
        """The confusion matrix ``(L, L)``, true × predicted, of the images of ``rows`` without some groups."""
        return confusion(self.labels, self._classify(self.without(remove)) if remove else self.predicted, self.classes)

    def _classify(self, network: nn.Module) -> np.ndarray:
        return self.logits(network).argmax(1).numpy()

    def logits(self, network: nn.Module) -> Tensor:
        """Logits ``(n, L)`` of a network for the images of ``rows``."""
        device = self.datamodel.target.device
        with torch.no_grad():
            parts = [
                network(self.data.test.batch(self.rows[first : first + _BATCH])[0].to(device)).cpu()
                for first in range(0, len(self.rows), _BATCH)
            ]
        return torch.cat(parts)


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """Counts ``(L, L)``, true × predicted."""
    size = len(classes)
    counts: np.ndarray = np.bincount(labels * size + predicted, minlength=size * size).reshape(size, size)
    return counts


def warm(opened: Opened) -> None:
    """Compute what the first question would wait for: predictions, and directions of all groups."""
    opened.counts(())
    with opened.lock:
        opened.datamodel.trace(_first(opened))
        opened.datamodel.attribute(_first(opened))


def warm_ordering(opened: Opened) -> None:
    """Compute what the first order of training samples would wait for: the curvature."""
    with opened.ordering, contextlib.suppress(InputError):
        opened.datamodel.shares(_first(opened))


def _first(opened: Opened) -> Samples:
    return opened.data.test[opened.rows[:1]]
