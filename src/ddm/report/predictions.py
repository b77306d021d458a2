"""Section "Single predictions": the groups behind a few predictions, and the prediction without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.answers.attribution import Attribution
from ddm.data.inputs import X
from ddm.data.shown import label_text, name
from ddm.errors import InputError
from ddm.plots import units
from ddm.report.numbers import percent, points, signed
from ddm.report.residuals import said
from ddm.report.shown import SHORT
from ddm.report.subject import Subject, certainty

_REMOVED = 3
"""Number of groups removed together: the strongest drivers of a prediction."""

_CLASSES, _SAMPLES, _THUMBNAILS = 4, 6, 3

_EXPLAINED = {"regression": "value", "multilabel": "probabilities", "tokens": "loss", "pixels": "loss"}
"""The value that is explained for a sample without a class, by the kind of the task."""


def predictions_section(subject: Subject) -> dict[str, Any]:
    """One card for each chosen prediction."""
    x, y = subject.asked.batch()
    outputs = subject.datamodel.target.outputs(x).cpu()
    if subject.diagnosis is not None:
        stories = [_story(subject, title, row) for title, row in choose(outputs, y)]
    else:
        losses = subject.task.losses(outputs, y)
        stories = [_story_without_class(subject, title, row) for title, row in choose_by_loss(losses)]
    return {"split": subject.split, "stories": stories}


def choose(logits: Tensor, labels: Tensor) -> list[tuple[str, int]]:
    """Rows of logits ``(n, L)`` to show: the least and most confident of the wrong and of the right answers."""
    probabilities = logits.softmax(1)
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1).values.numpy()
    lead = best[:, 0] - best[:, -1]
    right = (probabilities.argmax(1) == labels).numpy()
    order = np.argsort(lead, kind="stable")
    wrong, correct = order[~right[order]], order[right[order]]
    wanted = [
        ("A wrong and doubtful answer", wrong[:1]),
        ("A wrong but confident answer", wrong[1:][-1:]),
        ("A right but doubtful answer", correct[:1]),
        ("A right and confident answer", correct[1:][-1:]),
    ]
    return [(title, int(row)) for title, rows in wanted for row in rows]


def choose_by_loss(losses: Tensor) -> list[tuple[str, int]]:
    """Rows of losses ``(n,)`` to show: the largest, a usual one and the smallest."""
    order = losses.argsort(descending=True, stable=True)
    places = {"The largest error": 0, "A usual error": len(order) // 2, "The smallest error": len(order) - 1}
    rows = {int(order[place]): title for title, place in reversed(places.items())}
    return [(title, row) for row, title in reversed(rows.items())]


def _story(subject: Subject, title: str, row: int) -> dict[str, Any]:
    datamodel, classes = subject.datamodel, subject.data.classes
    x, y = subject.asked.batch([row])
    label, before = int(y[0]), datamodel.target.outputs(x)[0].softmax(0)
    guess = int(before.argmax())
    found = datamodel.attribute((x, y), "probabilities").on(classes[guess])
    drivers = _drivers(found)
    after = _outputs_without(subject, x, drivers).softmax(0)
    return _card(subject, title, row, drivers) | {
        "label": classes[label],
        "said": classes[guess],
        "right": guess == label,
        "explained": f"probability of {classes[guess]}",
        "changes": _changes(before.cpu().numpy(), after.cpu().numpy(), classes),
        "after": classes[int(after.argmax())],
        "samples": _samples(subject, row, drivers.names[0], "probabilities", classes[guess]) if len(drivers) else None,
    }


def _story_without_class(subject: Subject, title: str, row: int) -> dict[str, Any]:
    """The same for a sample without a class: the groups that move what the model says most."""
    datamodel, objective = subject.datamodel, _EXPLAINED[subject.task.kind]
    x, y = subject.asked.batch([row])
    found = datamodel.attribute((x, y), objective)
    most = min(_REMOVED, len(found) - 1)
    drivers = found.of(found.order()[:most])
    before, after = datamodel.target.outputs(x)[0].cpu(), _outputs_without(subject, x, drivers).cpu()
    focus = found.outputs[found.focus]
    explained = {"value": focus, "probabilities": f"probability of {focus}", "loss": "loss"}[objective]
    output = focus if objective != "loss" else None
    return _card(subject, title, row, drivers) | {
        "label": label_text(subject.asked, row),
        "said": said(subject, before),
        "right": None,
        "explained": explained,
        "changes": _changed_numbers(subject, before, after, y),
        "after": said(subject, after),
        "samples": _samples(subject, row, drivers.names[0], objective, output),
    }


def _card(subject: Subject, title: str, row: int, drivers: Attribution) -> dict[str, Any]:
    """The parts of a story that do not depend on the task."""
    names = list(drivers.names)
    return {
        "title": title,
        "row": row,
        "name": name(subject.asked, row),
        "shown": subject.shown.of(subject.asked, [row]),
        "drivers": [
            {
                "name": group,
                "effect": _change(drivers, i),
                "certainty": certainty(drivers, i),
                "shown": subject.thumbnails(group, _THUMBNAILS),
            }
            for i, group in enumerate(names)
        ],
        "no_stand_out": drivers.no_stand_out if names else None,
        "beyond": subject.datamodel.beyond(names) if names else None,
    }


def _change(drivers: Attribution, number: int) -> str:
    effect = float(drivers.scores[number])
    return points(effect) if drivers.fraction else units.minus(units.change_text(effect, False))


def _outputs_without(subject: Subject, x: X, drivers: Attribution) -> Tensor:
    """Outputs ``(L,)`` of the model without these groups."""
    removed = subject.partition.mask(list(drivers.names))
    return subject.datamodel.outputs(x.to(subject.datamodel.target.theta), removed[None])[0, 0]


def _drivers(found: Attribution) -> Attribution:
    """The groups without which the prediction would be least likely, with the change of its probability."""
    most = min(_REMOVED, len(found) - 1)  # one group must stay
    order = np.argsort(np.nan_to_num(found.scores), kind="stable")[:most]
    return found.of(order[found.scores[order] < 0])


def _changes(before: np.ndarray, after: np.ndarray, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """The likeliest classes with and without the drivers."""
    order = np.argsort(-np.maximum(before, after), kind="stable")[:_CLASSES]
    return [
        {
            "name": classes[label],
            "before": percent(float(before[label])),
            "after": percent(float(after[label])),
            "share_before": round(float(before[label]), 3),
            "share_after": round(float(after[label]), 3),
        }
        for label in order[np.argsort(-before[order], kind="stable")]
    ]


def _changed_numbers(subject: Subject, before: Tensor, after: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """The model's answers with and without the drivers: numbers, probabilities of labels, or the loss."""
    task, pair = subject.task, torch.stack([before, after])
    if task.kind == "multilabel":
        first, second = task.mean(pair).numpy()
        return _changes(first, second, subject.data.classes)
    if task.by_position:
        names: tuple[str, ...] = ("loss",)
        values = task.losses(pair, y.expand(2, *y.shape[1:]))[:, None]
    else:
        names, values = subject.data.classes, task.mean(pair)
    return [
        {"name": one, "before": units.minus(f"{values[0, i]:.4g}"), "after": units.minus(f"{values[1, i]:.4g}")}
        for i, one in enumerate(names)
    ]


def _samples(subject: Subject, row: int, group: str, objective: str, output: str | None) -> dict[str, Any]:
    """The training samples of a group that contribute most to its effect on what is explained."""
    train = subject.data.train
    try:
        shares = subject.datamodel.shares(subject.asked[[row]], group, objective, output=output, train=train)
    except InputError as error:
        return {"group": group, "why": str(error), "top": []}
    top = shares.top(_SAMPLES)
    shown = subject.shown.of(train, [sample for sample, _ in top], longest=SHORT)
    return {
        "group": group,
        "top": [
            {
                "row": sample,
                "name": name(train, sample),
                "share": f"{signed(100 * value, 2)} points" if shares.fraction else units.minus(shares.text(value)),
                "shown": shown[i : i + 1],
            }
            for i, (sample, value) in enumerate(top)
        ],
    }
