"""Objectives: the behaviour that is measured on a counterfactual model.

An objective maps the outputs ``(n, L)`` of a counterfactual model, the outputs of the target, and the labels to one or
more values. Users may pass any callable of these three. Named objectives also give names to their values and say how
groups are ranked. Which of them make sense depends on the task: ``ddm.answers.task_objectives`` has those of tasks
whose samples have no class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.losses import SampleLoss
from ddm.data.tasks import Task, task_of
from ddm.errors import InputError

Measure = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(outputs (n, L), baseline outputs (n, L), labels (n,)) → value`` or values ``(O,)``."""


def _softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(-1)


@dataclass(frozen=True)
class Objective:
    """A measured behaviour.

    name:      its name
    measure:   computes it
    meaning:   what it measures, in one line for users
    per_class: True if it has one value per class, False if it has a single value
    signed:    True if groups are ranked by the absolute effect; else the largest effect comes first
    fraction:  True if its values are fractions, so that people read them in percent and their changes in points
    one_way:   True if every removal moves the value in the same direction, because the target has its extreme
    needs_labels: False if it can be measured without labels, which are None then
    link:      the mean of outputs ``(n, L)``, whose largest entry is the value in focus if there is one per class
    stacked:   True if ``measure`` also accepts outputs ``(M, n, L)`` of M models and returns ``(M,)`` or ``(M, O)``
    """

    name: str
    measure: Measure
    meaning: str
    per_class: bool = False
    signed: bool = True
    stacked: bool = False
    fraction: bool = False
    one_way: bool = False
    needs_labels: bool = True
    link: Callable[[Tensor], Tensor] = _softmax

    def labels_on(self, labels: Tensor | None, device: torch.device) -> Tensor:
        """The labels on a device; refused if there are none and the objective needs them."""
        if labels is not None:
            return labels.to(device)
        if self.needs_labels:
            raise InputError(f"the objective '{self.name}' compares with labels, but there are none: give them.")
        return torch.zeros(0, dtype=torch.int64, device=device)

    def values(self, outputs: Iterable[Tensor], baseline: Tensor, labels: Tensor) -> Tensor:
        """Values ``(M, O)`` for the outputs of M models, given in stacks ``(m, n, L)``."""
        return torch.cat([self._evaluate(stack, baseline, labels).double() for stack in outputs])

    def _evaluate(self, stack: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        if self.stacked:
            return self.measure(stack, baseline, labels).reshape(len(stack), -1)
        return torch.stack([torch.as_tensor(self.measure(row, baseline, labels)).reshape(-1) for row in stack])

    def output_names(self, classes: Sequence[str], count: int) -> tuple[str, ...]:
        """A name for each value."""
        if self.per_class and count <= len(classes):
            return tuple(classes[:count])
        return (self.name,) if count == 1 else tuple(f"{self.name} {i}" for i in range(count))


ObjectiveLike = str | Objective | Measure
"""What users may pass as an objective: a name, an ``Objective``, or a callable."""


def prediction(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Dist_1 = ‖y^u − ỹ‖²: how far the predicted probabilities move."""
    return _shift(outputs, baseline).mean(-1)


def correctness(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Dist_2 = cross-entropy of the prediction against the true label."""
    chosen = labels.expand(outputs.shape[:-1])[..., None]
    return -outputs.log_softmax(-1).gather(-1, chosen)[..., 0].mean(-1)


def stability(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Dist_3 = 1 / (1 + ‖y^u − ỹ‖²): near 1 where the prediction does not move."""
    return (1 / (1 + _shift(outputs, baseline))).mean(-1)


def probabilities(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Mean predicted probability of each class ``(L,)``."""
    return outputs.softmax(-1).mean(-2)


def logits(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Mean logit of each class ``(L,)``."""
    return outputs.mean(-2)


def accuracy(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Fraction classified correctly."""
    return (outputs.argmax(-1) == labels).double().mean(-1)


def class_precision(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Fraction of the samples predicted as each class that belong to it ``(L,)``; 0 if no sample is predicted so."""
    hits, given, _ = _counts(outputs, labels)
    return _ratio(hits, given)


def class_recall(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Fraction of the samples of each class that are predicted as it ``(L,)``; 0 for a class without samples."""
    hits, _, present = _counts(outputs, labels)
    return _ratio(hits, present)


def class_f1(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Harmonic mean of precision and recall of each class ``(L,)``."""
    hits, given, present = _counts(outputs, labels)
    return _ratio(2 * hits, given + present)


def _macro(per_class: Measure) -> Measure:
    """Measures the mean over the classes that occur among the labels or the predictions."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        _, given, present = _counts(outputs, labels)
        return per_class(outputs, baseline, labels)[(given + present) > 0].mean()

    return measure


def _shift(outputs: Tensor, baseline: Tensor) -> Tensor:
    return (outputs.softmax(-1) - baseline.softmax(-1)).square().sum(-1)


def _counts(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Correct, predicted and present samples of each class, each ``(L,)``."""
    count, predicted = outputs.shape[-1], outputs.argmax(-1)
    hits = torch.bincount(labels[predicted == labels], minlength=count)
    return (
        hits.double(),
        predicted.bincount(minlength=count).double(),
        labels.bincount(minlength=count).double(),
    )


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1), 0.0)


def _loss(loss: SampleLoss) -> Measure:
    return lambda outputs, baseline, labels: loss(outputs, labels)


def distillation(student: Tensor) -> Objective:
    """Mean KL(teacher ‖ student) for a student with fixed logits ``(n, L)``; the counterfactual model is the teacher.

    Lower means that the student agrees better with its teacher. A negative effect means that removing the group helps.
    """
    fixed = student.detach().log_softmax(-1)

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape != fixed.shape:
            raise InputError(
                f"the student's logits of shape {tuple(fixed.shape)} do not fit outputs of shape "
                f"{tuple(outputs.shape)}: give its logits for the samples asked about."
            )
        return F.kl_div(fixed.to(outputs), outputs.log_softmax(-1), log_target=True, reduction="batchmean")

    return Objective("distillation", measure, "divergence of the student from the model, KL(teacher ‖ student)")


_stacked = partial(Objective, stacked=True)
_unlabelled = partial(_stacked, needs_labels=False)

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        _stacked(
            "prediction",
            prediction,
            "shift of the predicted probabilities (Dist_1)",
            signed=False,
            one_way=True,
            needs_labels=False,
        ),
        _stacked("correctness", correctness, "cross-entropy against the true label (Dist_2)", signed=False),
        _unlabelled("stability", stability, "how little the prediction moves (Dist_3)", one_way=True),
        _stacked(
            "probabilities",
            probabilities,
            "predicted probability of each class",
            per_class=True,
            fraction=True,
            needs_labels=False,
        ),
        _unlabelled("logits", logits, "logit of each class", per_class=True),
        _stacked("loss", correctness, "the loss the target was trained with"),
        _stacked("accuracy", accuracy, "fraction classified correctly", fraction=True),
        Objective("precision", _macro(class_precision), "precision, mean over classes", fraction=True),
        Objective("recall", _macro(class_recall), "recall, mean over classes", fraction=True),
        Objective("f1", _macro(class_f1), "F1, mean over classes", fraction=True),
        Objective("class-precision", class_precision, "precision of each class", per_class=True, fraction=True),
        Objective("class-recall", class_recall, "recall of each class", per_class=True, fraction=True),
        Objective("class-f1", class_f1, "F1 of each class", per_class=True, fraction=True),
    )
}


def objectives_of(task: Task) -> dict[str, Objective]:
    """The objectives that make sense for a task, by name."""
    if task.has_classes:
        return OBJECTIVES
    from ddm.answers.task_objectives import of_task

    return {objective.name: objective for objective in of_task(task)}


def resolve(objective: ObjectiveLike, task: Task | SampleLoss) -> Objective:
    """The objective of a name or a callable, for the target's task, or for the task of a loss."""
    task = task_of(task)
    if isinstance(objective, Objective):
        return objective
    if objective == "loss" and not task.loss.is_cross_entropy:
        return Objective("loss", _loss(task.loss), OBJECTIVES["loss"].meaning)
    if isinstance(objective, str):
        known = objectives_of(task)
        if objective in known:
            return known[objective]
        why = f"{task.kind} has no objective" if objective in OBJECTIVES else "there is no objective"
        raise InputError(f"{why} '{objective}': use one of {', '.join(known)}.")
    name = getattr(objective, "__name__", "objective")
    return Objective(name, objective, "your own objective")
