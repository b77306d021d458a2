"""The run that a page explores: its datamodel and data, and results that all visitors share."""

from __future__ import annotations

import contextlib
import threading
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ddm.answers.objectives import resolve
from ddm.answers.scores import objectives_judging
from ddm.data.inputs import X
from ddm.data.samples import Data, Samples
from ddm.data.shown import is_image
from ddm.data.tasks import Task
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.explorer.quota import Quota
from ddm.runs.folder import EXACT
from ddm.truth.retraining import Retraining

MAX_TEST_SAMPLES = 2000
"""Maximum number of test samples on the page. Larger test sets are thinned out evenly."""

COUNTERFACTUALS = "counterfactuals"
"""Folder of a run that holds the models saved from the page."""

MAX_SAVED_BYTES = 2**32
"""Bytes of saved and retrained models that visitors may add to a run."""

_BATCH = 512


class ExploredRun:
    """A run, its datamodel and its data, for any number of visitors.

    Any thread may call the datamodel at any time. The locks only keep visitors from computing the same thing twice.
    Slow work has its own locks, so that quick answers do not wait for it.

    kind:            what a sample is, for sentences: image, text, row or sample
    rows:            positions ``(n,)`` of the test samples on the page
    lock:            held while a quick answer is computed
    shares_lock:     held while the shares of training samples are computed
    retraining_lock: held during a retraining: one runs at a time
    quota:           limits the models that visitors store in the run
    """

    def __init__(self, folder: Path, datamodel: DistilledDatamodel, data: Data) -> None:
        self.folder, self.datamodel, self.data = folder, datamodel, data
        self.kind = _kind_of(data.train)
        count = len(data.test)
        self.rows = np.unique(np.linspace(0, count - 1, min(count, MAX_TEST_SAMPLES)).round().astype(int))
        self.lock, self.shares_lock, self.retraining_lock = threading.RLock(), threading.Lock(), threading.Lock()
        self.quota = Quota([folder / COUNTERFACTUALS, folder / EXACT], MAX_SAVED_BYTES)
        self.model_without = lru_cache(maxsize=4)(self._model_without)
        self.confusion_counts = lru_cache(maxsize=256)(self._confusion_counts)

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each label."""
        return self.data.classes

    @property
    def task(self) -> Task:
        """The target's task, which says what outputs mean."""
        return self.datamodel.target.task

    @property
    def has_classes(self) -> bool:
        """True if every sample has one class."""
        return self.task.has_classes

    @property
    def labels(self) -> np.ndarray:
        """The true label ``(n, ...)`` of each sample of ``rows``."""
        labels: np.ndarray = self.data.test.labels[torch.as_tensor(self.rows)].numpy()
        return labels

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs ``(n, L)`` of the model for the samples of ``rows``."""
        with self.lock:
            return self.logits(self.datamodel.target.network)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The label ``(n,)`` that the model predicts for each sample of ``rows``."""
        return self.outputs.argmax(1).numpy()

    @cached_property
    def losses(self) -> np.ndarray:
        """The loss ``(n,)`` of each sample of ``rows``."""
        return self.task.losses(self.outputs, torch.as_tensor(self.labels)).double().numpy()

    def scores_without(self, remove: tuple[str, ...]) -> dict[str, float]:
        """The loss, and the figures that the task is judged by, of the samples of ``rows`` without some groups."""
        outputs = self.logits(self.model_without(remove)) if remove else self.outputs
        return self.scores(outputs)

    def scores(self, outputs: Tensor) -> dict[str, float]:
        """The same of outputs ``(n, L)``."""
        labels = torch.as_tensor(self.labels)
        judged = (resolve("loss", self.task), *objectives_judging(self.task))
        return {each.name: float(each.values([outputs[None]], outputs, labels)) for each in judged}

    def can_remove(self, group: str) -> bool:
        """True if the group was distilled, so that the datamodel can remove it."""
        return group not in self.datamodel.distilled.stopped

    def beyond(self, remove: tuple[str, ...]) -> str | None:
        """A sentence that says why the model without these groups is rough; None if it is within reach."""
        return self.datamodel.beyond(remove) if remove else None

    def retraining(self) -> Retraining:
        """Real retraining, which caches its models in the run. One process, so that the estimated time is right."""
        return Retraining(self.datamodel.target, self.data.train, self.folder / EXACT, workers=1)

    @cached_property
    def retraining_seconds(self) -> float | None:
        """Estimated seconds of one retraining."""
        with self.lock:
            return self.retraining().estimate_seconds()

    def _model_without(self, remove: tuple[str, ...]) -> nn.Module:
        """The model without some groups, as the datamodel predicts it."""
        with self.lock:
            removed = self.datamodel.partition.removal(remove)
            self.datamodel.models.check_usable(removed)
            return self.datamodel.models.network(removed)

    def _confusion_counts(self, remove: tuple[str, ...]) -> np.ndarray:
        """The confusion matrix ``(L, L)``, true × predicted, of the images of ``rows`` without some groups."""
        predicted = self._classify(self.model_without(remove)) if remove else self.predicted
        return count_confusions(self.labels, predicted, self.classes)

    def _classify(self, network: nn.Module) -> np.ndarray:
        return self.logits(network).argmax(1).numpy()

    def logits(self, network: nn.Module) -> Tensor:
        """Outputs ``(n, L)`` of a network for the samples of ``rows``."""
        parts = (
            self.data.test.batch(self.rows[first : first + _BATCH])[0] for first in range(0, len(self.rows), _BATCH)
        )
        return torch.cat([self.answer(network, part) for part in parts])

    def answer(self, network: nn.Module, x: X) -> Tensor:
        """Outputs ``(b, L)`` of a network for inputs ``(b, ...)``."""
        with torch.no_grad():
            return self.task.outputs(network, x.to(self.datamodel.target.device)).cpu()


def _kind_of(samples: Samples) -> str:
    if is_image(samples):
        return "image"
    if samples.view is None:
        return "sample"
    return "row" if hasattr(samples.view, "differing") else "text"


def count_confusions(labels: np.ndarray, predicted: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """The confusion matrix ``(L, L)``, true × predicted."""
    size = len(classes)
    counts: np.ndarray = np.bincount(labels * size + predicted, minlength=size * size).reshape(size, size)
    return counts


def warm_up(run: ExploredRun) -> None:
    """Cache what the first question needs: predictions, and the directions of all groups."""
    if run.has_classes:
        run.confusion_counts(())
    with run.lock:
        run.datamodel.trace(_first_sample(run))
        run.datamodel.attribute(_first_sample(run))


def warm_up_shares(run: ExploredRun) -> None:
    """Cache what the first shares of training samples need: the curvature."""
    with run.shares_lock, contextlib.suppress(InputError):
        run.datamodel.shares(_first_sample(run))


def _first_sample(run: ExploredRun) -> Samples:
    return run.data.test[run.rows[:1]]
