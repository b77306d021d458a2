"""The subject of a question: the samples as people see them, their labels, and what the model says."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.datamodel import DistilledDatamodel

_SHOWN = 3
"""Maximum samples that are described."""

_DIFFERING = 4
"""Columns of a row that are compared with what is usual."""


def describe_samples(
    out: Console, datamodel: DistilledDatamodel, samples: Samples, split: str, index: list[int] | None
) -> None:
    """Print the samples that a user asks about by number, unless they are pictures."""
    if samples.view is None or not index:
        return
    task = datamodel.target.task
    shown = samples[list(range(min(_SHOWN, len(samples))))]
    outputs = datamodel.target.outputs(shown.batch()[0]).cpu()
    for row, number in enumerate(index[:_SHOWN]):
        name = f", {shown.id(row)}" if shown.ids is not None else f", row {shown.id(row)} of the file"
        out.print(escape(f"Sample {number} of the {split} split{name}: {samples.view.text(row)}"))
        if (unusual := _unusual(datamodel, shown, row)) is not None:
            out.print(escape(unusual))
        out.print(escape(f"{_label(shown, row, task)} {prediction(task, outputs[row], shown.classes)}"))
    if len(index) > _SHOWN:
        out.print(f"… and {len(index) - _SHOWN} more samples.")


def _label(samples: Samples, row: int, task: Task) -> str:
    label = samples.labels[row]
    if task.has_classes:
        return f"Its label is {samples.classes[int(label)]}."
    if task.kind == "multilabel":
        present = [name for name, one in zip(samples.classes, label.tolist(), strict=True) if one > 0.5]
        return f"Its labels are {', '.join(present) or 'none'}."
    return f"Its {samples.classes[0]} is {float(label):.6g}." if label.numel() == 1 else ""


def prediction(task: Task, outputs: Tensor, classes: tuple[str, ...]) -> str:
    """The model's answer for one sample with outputs ``(L,)``."""
    values = task.mean(outputs)
    if task.has_classes:
        best = int(values.argmax())
        return f"The model says {classes[best]} ({float(values[best]):.1%})."
    if task.kind == "multilabel":
        return f"The model says {', '.join(f'{name} {float(v):.1%}' for name, v in zip(classes, values, strict=True))}."
    return f"The model says {', '.join(f'{float(value):.6g}' for value in values)}."


def _unusual(datamodel: DistilledDatamodel, samples: Samples, row: int) -> str | None:
    """The columns in which a row differs most from the training rows of its class; None for texts."""
    from ddm.data.views import TableView

    train = datamodel.samples
    if not isinstance(samples.view, TableView) or train is None or not isinstance(train.view, TableView):
        return None
    rows = (train.labels == samples.labels[row]).nonzero()[:, 0] if samples.has_classes else None
    found = samples.view.differing(row, train.view if rows is None else train.view[rows.numpy()], _DIFFERING)
    if not found:
        return None
    label = "" if rows is None else f" labelled {samples.classes[int(samples.labels[row])]}"
    columns = ", ".join(f"{name} {value} (usual: {usual})" for name, value, usual in found)
    return f"It differs most from training rows{label} in {columns}."
