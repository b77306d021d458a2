"""Tasks: what a network's outputs mean, and how the training judged them.

A task needs two things: ``outputs(network, inputs) → (b, L)``, the network's outputs for a batch as one row of L
numbers for each sample, and ``losses(outputs, labels) → (b,)``, one loss for each sample. The usual cases need neither,
because their loss says what they are:

| kind           | network returns          | labels                  | mean of the outputs (``link``) |
|----------------|--------------------------|-------------------------|--------------------------------|
| classification | ``(b, L)``               | ``(b,)`` whole numbers  | softmax                        |
| binary         | one logit, ``(b,)`` or ``(b, 1)`` | ``(b,)`` of 0 and 1 | softmax of (0, logit)       |
| multilabel     | ``(b, L)``               | ``(b, L)`` of 0 and 1   | sigmoid                        |
| regression     | ``(b,)`` or ``(b, L)``   | ``(b,)`` or ``(b, L)``  | the outputs themselves         |
| tokens         | ``(b, T, C)``            | ``(b, T)``, −100 ignored | softmax at each position      |
| pixels         | ``(b, C, H, W)``         | ``(b, H, W)``, −100 ignored | softmax at each position   |

For any other case, write a subclass of ``Task`` with these two methods and the ``kind`` whose labels it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.data.inputs import X, call
from ddm.data.losses import Loss, SampleLoss, sample_loss
from ddm.errors import InputError

IGNORED = -100
"""The label of a position that does not count, as in torch's cross-entropy."""


class Task:
    """Says what a network's outputs mean. Without a loss it takes the usual one of its kind.

    loss: the loss of the training: one of torch's losses, a function that returns one value for each sample ``(b,)``,
          or any other function that is a mean or a sum over the batch
    """

    kind = "classification"
    zero_sum = True
    """True if a number that is added to all outputs of a sample changes nothing."""

    usual: Loss = staticmethod(F.cross_entropy)

    def __new__(cls, kind: str | None = None, loss: Any = None, **options: Any) -> Task:
        """The class of this kind; ``Task("regression")`` makes a ``Regression``."""
        if cls is Task and kind is not None:
            if kind not in TASKS:
                raise InputError(f"there is no task '{kind}': use one of {', '.join(TASKS)}.")
            return super().__new__(TASKS[kind])
        return super().__new__(cls)

    def __init__(self, kind: str | None = None, loss: Loss | SampleLoss | None = None) -> None:
        if kind is not None:
            self.kind = kind
        self.given = None if _is_usual(loss, type(self).usual) else loss

    def outputs(self, network: nn.Module, inputs: X) -> Tensor:
        """The outputs ``(b, L)`` of a network for a batch."""
        return self.shaped(find_outputs(call(network, inputs)))

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample ``(b,)``, from outputs ``(b, L)``."""
        return self.loss.each(outputs, labels)

    def shaped(self, found: Tensor) -> Tensor:
        """The tensor that the network returned, as outputs ``(b, L)``."""
        if found.dim() != 2:
            raise InputError(
                f"the network returns outputs of shape {tuple(found.shape)}, but {self.kind} needs one row of numbers "
                f"for each sample: {self._advice(found)}."
            )
        return found

    def _advice(self, found: Tensor) -> str:
        if found.dim() == 1:
            return "for a single logit give the task 'binary', for a predicted number 'regression'"
        return "give the task 'tokens' or 'pixels' for one prediction at each position, or a Task of your own"

    def prepared(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``(b, L)`` and labels as the loss takes them."""
        return outputs, labels

    def mean(self, outputs: Tensor) -> Tensor:
        """The link: predicted probabilities, or predicted numbers, ``(..., L)``."""
        return outputs.softmax(-1)

    def margin(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One number for each sample ``(b,)`` that rises when the prediction gets better; computed in float64."""
        return -self.losses(outputs.double(), labels)

    @cached_property
    def loss(self) -> SampleLoss:
        """The loss of each sample, on outputs ``(b, L)``."""
        if type(self).losses not in _BUILT_IN_LOSSES:
            return SampleLoss(self.losses, self.losses, f"own {type(self).__name__}")
        return self.adapted

    @property
    def adapted(self) -> SampleLoss:
        """The loss that was given, or the usual one, on outputs and labels as the task has them."""
        found = sample_loss(self.usual if self.given is None else self.given)
        if type(self).prepared is Task.prepared:
            return found
        single = None if found.single is None else _Prepared(self.prepared, found.single)
        name = self.usual_name if self.given is None else found.name
        return SampleLoss(_Prepared(self.prepared, found.original), single, name)

    @property
    def usual_name(self) -> str:
        """The name of the kind's usual loss in files."""
        return sample_loss(F.cross_entropy).name if self.kind in _CLASSES else self.kind

    @property
    def has_classes(self) -> bool:
        """True if every sample has one class, so that groups can lie within classes."""
        return self.kind in _CLASSES

    def width(self, classes: int) -> int:
        """Numbers that a network returns for samples of so many classes or outputs."""
        return classes

    @property
    def by_position(self) -> bool:
        """True if a sample has one label for each position."""
        return isinstance(self, Positions)

    def output_names(self, count: int) -> list[str]:
        """Names of outputs that have none."""
        return ["prediction"] if count == 1 else [str(number) for number in range(count)]

    def check_labels(self, labels: Tensor, outputs: int) -> str | None:
        """Why labels do not fit a network with so many outputs, to end a sentence; None if they fit."""
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= outputs:
            return f"labels must lie in 0 to {outputs - 1}; these reach from {low} to {high}"
        return None

    def __repr__(self) -> str:
        return f"Task: {self.kind}, {self.loss.name.removeprefix('own ')}"


class Binary(Task):
    """One logit f. The outputs are (0, f), whose softmax is (1 − σ(f), σ(f)), so it is a task of two classes."""

    kind = "binary"
    usual = staticmethod(F.binary_cross_entropy_with_logits)

    def width(self, classes: int) -> int:
        """One logit tells two classes apart."""
        return 1

    def shaped(self, found: Tensor) -> Tensor:
        """(0, f) ``(b, 2)``."""
        if found.dim() == 2 and found.shape[1] == 1:
            found = found[:, 0]
        if found.dim() != 1:
            raise InputError(
                f"the network returns outputs of shape {tuple(found.shape)}, but binary needs one logit for each "
                "sample: give the task 'multilabel' for several logits, or 'classification' for one for each class."
            )
        return torch.stack([torch.zeros_like(found), found], 1)

    def prepared(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logit ``(b,)`` and labels as numbers, for the user's loss; the usual loss takes both as they are."""
        if self.given is None:
            return outputs, labels
        return outputs[:, 1] - outputs[:, 0], labels.to(outputs.dtype)

    @cached_property
    def loss(self) -> SampleLoss:
        """Cross-entropy of (0, f), which equals that of the logit; another loss on the logit itself."""
        return sample_loss(F.cross_entropy) if type(self).losses is Task.losses and self.given is None else self.adapted


class MultiLabel(Task):
    """Several labels for a sample, each present or not."""

    kind = "multilabel"
    zero_sum = False
    usual = staticmethod(F.binary_cross_entropy_with_logits)

    def mean(self, outputs: Tensor) -> Tensor:
        """The probability of each label."""
        return outputs.sigmoid()

    def prepared(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels as numbers of the outputs' type."""
        return outputs, labels.to(outputs.dtype)

    def margin(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean log-odds of the correct state of each label."""
        return ((2 * labels.double() - 1) * outputs.double()).mean(-1)

    def check_labels(self, labels: Tensor, outputs: int) -> str | None:
        """Why labels do not fit."""
        if labels.dim() != 2:
            return f"labels must be a table of 0 and 1 with one row for each sample, not {_shape(labels)}"
        if labels.shape[1] != outputs:
            return f"labels must have one column of 0 and 1 for each of {outputs} outputs, not {_shape(labels)}"
        return None if bool(((labels >= 0) & (labels <= 1)).all()) else "labels must be 0 or 1"


class Regression(Task):
    """One or more predicted numbers."""

    kind = "regression"
    zero_sum = False
    usual = staticmethod(F.mse_loss)

    def shaped(self, found: Tensor) -> Tensor:
        """Predicted numbers ``(b, L)``."""
        return super().shaped(found[:, None] if found.dim() == 1 else found)

    def mean(self, outputs: Tensor) -> Tensor:
        """The predicted numbers."""
        return outputs

    def prepared(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of the outputs' shape and type."""
        return outputs, labels.to(outputs.dtype).reshape(outputs.shape)

    def margin(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The predicted number; of several, their sum."""
        return outputs.double().sum(-1)

    def check_labels(self, labels: Tensor, outputs: int) -> str | None:
        """Why labels do not fit."""
        width = 1 if labels.dim() == 1 else int(labels.shape[1])
        if labels.dim() > 2 or width != outputs:
            numbers = "one number" if outputs == 1 else f"{outputs} numbers"
            return f"labels must be {numbers} for each sample, not {_shape(labels)}"
        return None if bool(labels.isfinite().all()) else "labels must be finite numbers"


class Positions(Task):
    """One class at each position of a sample: tokens of a text, or pixels of an image."""

    zero_sum = False
    classes: int | None = None
    """C, the number of classes; known after the first outputs."""

    def shaped(self, found: Tensor) -> Tensor:
        """Outputs ``(b, positions · C)``, with the classes of a position side by side."""
        wanted = 3 if self.kind == "tokens" else 4
        if found.dim() != wanted:
            order = "(samples, tokens, classes)" if self.kind == "tokens" else "(samples, classes, height, width)"
            raise InputError(f"{self.kind} needs outputs of shape {order}, not {tuple(found.shape)}.")
        found = found if self.kind == "tokens" else found.flatten(2).transpose(1, 2)
        self.classes = int(found.shape[-1])
        return found.flatten(1)

    def unflatten(self, outputs: Tensor) -> Tensor:
        """Outputs ``(..., positions, C)``."""
        assert self.classes is not None
        found: Tensor = outputs.unflatten(-1, (-1, self.classes))
        return found

    def mean(self, outputs: Tensor) -> Tensor:
        """The probability of each class at each position, ``(..., positions · C)``."""
        return self.unflatten(outputs).softmax(-1).flatten(-2)

    def weights(self, labels: Tensor) -> Tensor:
        """The weight of each position ``(b, positions)`` in its sample's loss, a mean over those that count."""
        counts = (labels.flatten(1) != IGNORED).double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over the positions of each sample ``(b,)``."""
        found = sample_loss(self.usual if self.given is None else self.given)
        rows, targets = self.unflatten(outputs), labels.flatten(1)
        if found.single is None:
            raise InputError(f"{self.kind} needs one of torch's losses, or a Task of your own with a method losses.")
        each = found.single(rows.flatten(0, -2), targets.flatten()).view(targets.shape)
        return (each * self.weights(labels).to(each)).sum(1)

    @cached_property
    def loss(self) -> SampleLoss:
        """The mean over positions, for each sample."""
        if type(self).losses is not Positions.losses:
            return super().loss
        found = sample_loss(self.usual if self.given is None else self.given)
        name = self.usual_name if found.is_cross_entropy else found.name
        return SampleLoss(self.losses, self.losses, name)

    def check_labels(self, labels: Tensor, outputs: int) -> str | None:
        """Why labels do not fit."""
        counted = labels[labels != IGNORED]
        classes = self.classes or outputs
        if labels.dim() < 2 or (len(counted) and (int(counted.min()) < 0 or int(counted.max()) >= classes)):
            return f"labels must be a class from 0 to {classes - 1} at each position, or {IGNORED}"
        return None


class Tokens(Positions):
    """One class for each token."""

    kind = "tokens"


class Pixels(Positions):
    """One class for each pixel."""

    kind = "pixels"


TASKS: dict[str, type[Task]] = {
    "classification": Task,
    "binary": Binary,
    "multilabel": MultiLabel,
    "regression": Regression,
    "tokens": Tokens,
    "pixels": Pixels,
}
"""Every kind of task by its name."""

_CLASSES = ("classification", "binary")
_BUILT_IN_LOSSES = {Task.losses, Positions.losses}

_REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
_LOGITS = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss")
"""Names of torch's losses that say what a task is."""


def task_of(given: Task | str | Loss | SampleLoss | None, outputs: int | None = None) -> Task:
    """The task that a user names, or that a loss implies.

    outputs: numbers that the network returns for each sample; tells several labels from a single logit
    """
    if isinstance(given, Task):
        return given
    if given is None or isinstance(given, str):
        return Task(given)
    loss = given.original if isinstance(given, SampleLoss) else given
    if isinstance(loss, Task):
        return loss
    name = _name(loss)
    if name in _REGRESSION:
        return Regression("regression", given)
    if name in _LOGITS:
        return Binary("binary", given) if outputs in (None, 1) else MultiLabel("multilabel", given)
    return Task("classification", given)


def find_outputs(found: Any) -> Tensor:
    """The tensor of outputs in what a network returned: itself, or its ``logits``."""
    outputs = found if isinstance(found, Tensor) else logits_of(found)
    if outputs is not None:
        return outputs
    raise InputError(
        f"the network returns a {type(found).__name__}, not a tensor of outputs: give a Task of your own, whose method "
        "outputs picks the tensor."
    )


def logits_of(found: Any) -> Tensor | None:
    """The ``logits`` in what a network returned, as networks of transformers have them; None if there are none."""
    logits = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    return logits if isinstance(logits, Tensor) else None


class _Prepared:
    """A loss that gets outputs and labels as ``prepare`` returns them."""

    def __init__(self, prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], loss: Loss) -> None:
        self.prepare, self.loss = prepare, loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(*self.prepare(outputs, labels))


def _name(loss: Any) -> str:
    """The name of a loss, of a partial of it, or of its class."""
    function = loss.func if isinstance(loss, partial) else loss
    return str(getattr(function, "__name__", type(function).__name__))


def _is_usual(given: Any, usual: Loss) -> bool:
    """True for the usual loss of a kind, as torch's function or module with default options."""
    loss = given.original if isinstance(given, SampleLoss) else given
    if isinstance(loss, nn.Module):
        kind = _MODULES.get(usual)
        return kind is not None and type(loss) is kind and _options(loss) == _options(kind())
    return loss is usual


def _options(loss: nn.Module) -> dict[str, Any]:
    """The options of one of torch's losses; tensors of weights by their identity."""
    return {name: value for name, value in (vars(loss) | loss._buffers).items() if not name.startswith("_")}


_MODULES: dict[Loss, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
}
"""The module of each usual loss."""


def _shape(labels: Tensor) -> str:
    return f"labels of shape {tuple(labels.shape)}"
