"""The model without some groups, as the datamodel predicts it: its answers, errors and file. No Gradio here."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ddm import networks
from ddm.errors import InputError
from ddm.explorer.explored_run import COUNTERFACTUALS, ExploredRun
from ddm.explorer.question import Question
from ddm.explorer.state import State

NO_GROUP = "no group is removed: tick a group first."


@dataclass(frozen=True, eq=False)
class Prediction:
    """The model's answers ``(L,)``, with all groups and without the removed ones: probabilities, or numbers.

    beyond: a sentence that says why the answer is rough; None if it is within reach
    """

    before: np.ndarray
    after: np.ndarray
    beyond: str | None = None


def predict(run: ExploredRun, state: State, question: Question) -> Prediction:
    """The model's answer for the sample, before and after the removal. For labels by position it is the loss."""
    before, after = question.logits, logits_without(run, state, question)
    return Prediction(answers(run, question, before)[0], answers(run, question, after)[0], run.beyond(state.remove))


def answers(run: ExploredRun, question: Question, outputs: Tensor) -> np.ndarray:
    """The answers ``(M, …)`` of models with outputs ``(M, L)`` for the sample."""
    if run.task.by_position:
        labels = question.y.expand(len(outputs), *question.y.shape[1:])
        return run.task.losses(outputs, labels)[:, None].double().numpy()
    return run.task.mean(outputs.double()).numpy()


def logits_without(run: ExploredRun, state: State, question: Question) -> Tensor:
    """Outputs ``(1, L)`` for the sample without the removed groups."""
    if not state.remove:
        return question.logits
    return run.answer(run.model_without(state.remove), question.x)


@dataclass(frozen=True, eq=False)
class Confusions:
    """Confusion matrices ``(L, L)``, true × predicted, with all groups and without the removed ones.

    beyond: a sentence that says why the answer is rough; None if it is within reach
    """

    before: np.ndarray
    after: np.ndarray
    beyond: str | None = None

    @property
    def accuracy(self) -> tuple[float, float]:
        """Accuracy before and after."""
        return accuracy_of(self.before), accuracy_of(self.after)


def compare_confusions(run: ExploredRun, state: State) -> Confusions:
    """The errors on the test samples, before and after the removal."""
    return Confusions(run.confusion_counts(()), run.confusion_counts(state.remove), run.beyond(state.remove))


def accuracy_of(counts: np.ndarray) -> float:
    """Accuracy of a confusion matrix ``(L, L)``."""
    return float(np.trace(counts) / counts.sum())


def save_model(run: ExploredRun, state: State) -> Path:
    """Write the model without the removed groups into the run. Its file name is made of the groups' names."""
    if not state.remove:
        raise InputError(NO_GROUP)
    path = run.folder / COUNTERFACTUALS / f"{model_name(state.remove)}.safetensors"
    if not path.exists():
        run.quota.check()
    networks.save(run.model_without(state.remove), path)
    return path


def model_name(remove: tuple[str, ...]) -> str:
    """A safe file name for the model without some groups: equal for the same groups, different for others."""
    names = sorted(remove)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", "_".join(names)).strip("-")[:60]
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
    return "-".join(part for part in ("without", readable, digest) if part)
