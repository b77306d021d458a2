"""A visitor's question: one sample, and the value of the model's answer that is explained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ddm.answers import objectives
from ddm.answers.objectives import Objective
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.data.shown import label_text
from ddm.data.tasks import Positions, Task
from ddm.explorer import typed, upload
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.state import PER_CLASS, State


@dataclass(frozen=True, eq=False)
class Question:
    """The sample of a question.

    samples, row: the samples that hold it, and its position there
    x:      the network's input ``(1, ...)``
    y:      its label ``(1, ...)``; the predicted one if the true one is unknown
    label:  the true label in words, or None
    logits: output of the model ``(1, L)``
    """

    samples: Samples
    row: int
    x: X
    y: Tensor
    label: str | None
    logits: Tensor

    @property
    def predicted(self) -> int:
        """The label that the model predicts."""
        return int(self.logits.argmax())


def pose_question(run: ExploredRun, state: State) -> Question:
    """The question of a state, about a test sample or one of the visitor's own."""
    samples, row = _sample(run, state)
    x, y = samples.batch([row])
    logits = run.answer(run.datamodel.target.network, x)
    if not state.is_own:
        return Question(samples, row, x, y, label_text(samples, row), logits)
    if not (run.has_classes and state.label):
        return Question(samples, row, x, _predicted(run.task, logits, y), None, logits)
    return Question(samples, row, x, torch.tensor([run.classes.index(state.label)]), state.label, logits)


def _sample(run: ExploredRun, state: State) -> tuple[Samples, int]:
    """The sample of a state, and the samples that hold it. The label of a visitor's own means nothing."""
    if state.typed:
        return typed.restore(run, state.typed), 0
    if state.picture:
        raw = upload.restore(state.picture, run.data.train)
        return replace(run.data.train[[0]], raw=raw[None], ids=None), 0
    return run.data.test, state.index


def _predicted(task: Task, logits: Tensor, like: Tensor) -> Tensor:
    """The model's prediction, in the form of labels ``like (1, ...)``."""
    if task.has_classes:
        return logits.argmax(1)
    if isinstance(task, Positions):
        return task.unflatten(logits).argmax(-1).reshape(like.shape)
    mean = task.mean(logits)
    return (mean if task.kind == "regression" else (mean > 0.5).float()).reshape(like.shape)


def class_in_focus(run: ExploredRun, state: State, question: Question) -> str:
    """The class or output that the visitor chose, or else the predicted one."""
    return state.output or run.classes[min(question.predicted, len(run.classes) - 1)]


def resolve_objective(run: ExploredRun, state: State, question: Question) -> Objective:
    """The value that is explained, as one number. Objectives with a value per class use the class in focus."""
    found = objectives.resolve(state.objective, run.task)
    if state.objective not in PER_CLASS:
        return found
    name = class_in_focus(run, state, question)
    position = run.classes.index(name)

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return found.measure(outputs, baseline, labels)[..., position]

    meaning = found.meaning.replace("each class", f"class {name}").replace("each output", name)
    return replace(found, measure=measure, meaning=meaning.replace("each label", f"label {name}"), per_class=False)
