"""A visitor's question: one image, and the value of the model's answer that is explained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ddm.answers import objectives
from ddm.answers.objectives import Objective
from ddm.data.inputs import tensor_of
from ddm.explorer import upload
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.state import PER_CLASS, State


@dataclass(frozen=True, eq=False)
class Question:
    """The image of a question.

    raw:    pixels as stored ``(C, H, W)``
    x:      the network's input ``(1, C, H, W)``
    y:      its label ``(1,)``; the predicted class if the true one is unknown
    label:  the true class, or None
    logits: output of the model ``(1, L)``
    """

    raw: Tensor
    x: Tensor
    y: Tensor
    label: str | None
    logits: Tensor

    @property
    def predicted(self) -> int:
        """The label that the model predicts."""
        return int(self.logits.argmax())


def pose_question(run: ExploredRun, state: State) -> Question:
    """The question of a state, about a test image or an uploaded picture."""
    if state.picture:
        raw = upload.restore(state.picture, run.data.train)
        label = state.label or None
    else:
        raw = run.data.test.pixels[state.index]
        label = run.classes[int(run.data.test.labels[state.index])]
    x = run.data.train.normalise(raw[None])
    with run.lock:
        logits = run.datamodel.target.outputs(x).cpu()
    y = logits.argmax(1) if label is None else torch.tensor([run.classes.index(label)])
    return Question(raw, tensor_of(x), y, label, logits)


def class_in_focus(run: ExploredRun, state: State, question: Question) -> str:
    """The class that the visitor chose, or else the predicted one."""
    return state.output or run.classes[question.predicted]


def resolve_objective(run: ExploredRun, state: State, question: Question) -> Objective:
    """The value that is explained, as one number. Objectives with a value per class use the class in focus."""
    if state.objective not in PER_CLASS:
        return objectives.resolve(state.objective, run.datamodel.target.task)
    per_class = objectives.OBJECTIVES[state.objective]
    name = class_in_focus(run, state, question)
    position = run.classes.index(name)

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return per_class.measure(outputs, baseline, labels)[..., position]

    meaning = per_class.meaning.replace("each class", f"class {name}")
    return replace(per_class, measure=measure, meaning=meaning, per_class=False)
