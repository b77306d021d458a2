"""Objectives of tasks whose samples have no class: several labels, predicted numbers, and a class at each position."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ddm.answers.objectives import Measure, Objective
from ddm.data.tasks import IGNORED, MultiLabel, Positions, Regression, Task


def of_task(task: Task) -> list[Objective]:
    """The objectives of a task without classes."""
    return [*_of_predictions(task), *_OF_KIND[task.kind](task)]


def _of_predictions(task: Task) -> list[Objective]:
    """The shift of the prediction, and the loss of the training."""

    def shift(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return (task.mean(outputs) - task.mean(baseline)).square().sum(-1).mean(-1)

    def loss(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return task.losses(outputs, labels).mean()

    moved = (
        "squared change of the predicted numbers (Dist_1)"
        if task.kind == "regression"
        else ("shift of the predicted probabilities (Dist_1)")
    )
    return [
        Objective("prediction", shift, moved, signed=False, one_way=True, needs_labels=False, stacked=True),
        Objective("loss", loss, "the loss the target was trained with"),
    ]


def _of_regression(task: Task) -> list[Objective]:
    def by_output(measure: Callable[[Tensor], Tensor]) -> Measure:
        return lambda outputs, baseline, labels: measure(outputs - labels.view(outputs.shape[-2:])).mean((-1, -2))

    def r2(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        wanted = labels.view(outputs.shape[-2:])
        spread = (wanted - wanted.mean(0)).square().sum()
        return 1 - (outputs - wanted).square().sum((-1, -2)) / spread.clamp(min=torch.finfo(spread.dtype).tiny)

    def values(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return outputs.mean(-2)

    stacked = partial(Objective, stacked=True)
    return [
        stacked("value", values, "predicted value of each output", per_class=True, needs_labels=False, link=task.mean),
        stacked("error", by_output(torch.square), "mean squared error"),
        stacked("absolute-error", by_output(torch.abs), "mean absolute error"),
        stacked("r2", r2, "R², the share of the labels' variance that is predicted", fraction=True),
    ]


def _of_several_labels(task: Task) -> list[Objective]:
    def probabilities(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return outputs.sigmoid().mean(-2)

    def logits(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return outputs.mean(-2)

    def accuracy(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return ((outputs > 0) == (labels > 0.5)).double().mean((-1, -2))

    each = partial(Objective, stacked=True, per_class=True, fraction=True, link=task.mean)
    whole = partial(Objective, stacked=True, fraction=True)
    return [
        each("probabilities", probabilities, "predicted probability of each label", needs_labels=False),
        Objective(
            "logits", logits, "logit of each label", per_class=True, stacked=True, needs_labels=False, link=task.mean
        ),
        whole("accuracy", accuracy, "fraction of all labels predicted correctly"),
        whole("precision", _mean(_precision), "precision, mean over labels"),
        whole("recall", _mean(_recall), "recall, mean over labels"),
        whole("f1", _mean(_f1), "F1, mean over labels"),
        each("class-precision", _precision, "precision of each label"),
        each("class-recall", _recall, "recall of each label"),
        each("class-f1", _f1, "F1 of each label"),
    ]


def _counts(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples that have each label and are predicted so, that are predicted so, and that have it, ``(..., L)``."""
    said, true = outputs > 0, labels > 0.5
    return (said & true).double().sum(-2), said.double().sum(-2), true.double().sum(-2).expand(said.sum(-2).shape)


def _precision(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    hits, said, _ = _counts(outputs, labels)
    return hits / said.clamp(min=1)


def _recall(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    hits, _, true = _counts(outputs, labels)
    return hits / true.clamp(min=1)


def _f1(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    hits, said, true = _counts(outputs, labels)
    return 2 * hits / (said + true).clamp(min=1)


def _mean(each: Measure) -> Measure:
    return lambda outputs, baseline, labels: each(outputs, baseline, labels).mean(-1)


def _of_positions(task: Task) -> list[Objective]:
    assert isinstance(task, Positions)

    def predicted(outputs: Tensor) -> Tensor:
        return task.unflatten(outputs).argmax(-1)

    def accuracy(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        wanted = labels.flatten(1)
        counted = wanted != IGNORED
        return ((predicted(outputs) == wanted) & counted).double().sum() / counted.sum().clamp(min=1)

    def f1(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        wanted = labels.flatten(1)
        said, true = predicted(outputs)[wanted != IGNORED], wanted[wanted != IGNORED]
        scores = [_class_f1(said == label, true == label) for label in torch.cat([said, true]).unique()]
        return torch.stack(scores).mean()

    return [
        Objective("accuracy", accuracy, "fraction of positions classified correctly", fraction=True),
        Objective("f1", f1, "F1, mean over the classes that occur", fraction=True),
    ]


def _class_f1(said: Tensor, true: Tensor) -> Tensor:
    return 2 * (said & true).double().sum() / (said.double().sum() + true.double().sum()).clamp(min=1)


_OF_KIND: dict[str, Callable[[Task], list[Objective]]] = {
    Regression.kind: _of_regression,
    MultiLabel.kind: _of_several_labels,
    "tokens": _of_positions,
    "pixels": _of_positions,
}
