"""Section "The largest errors", for models without classes: the samples with the largest loss, and what causes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ddm.data.shown import label_text, name, values_text
from ddm.plots import units
from ddm.report import charts
from ddm.report.effects import ends
from ddm.report.subject import Subject

_SHOWN, _CAUSES = 6, 3

_POINTS = 1000
"""Maximum samples in the chart."""


def residuals_section(subject: Subject) -> dict[str, Any]:
    """The validation samples with the largest loss, and for a single predicted number a chart of all."""
    x, y = subject.data.validation.batch()
    outputs = subject.datamodel.target.outputs(x).cpu()
    losses = subject.task.losses(outputs, y).double().numpy()
    order = np.argsort(-losses, kind="stable")
    return {
        "chart": _chart(outputs[:, 0].numpy(), y.reshape(-1).numpy(), subject) if is_number(subject) else None,
        "cards": [_card(subject, int(row), float(losses[row]), outputs[row]) for row in order[:_SHOWN]],
        "median": units.value_text(float(np.median(losses)), False),
    }


def is_number(subject: Subject) -> bool:
    """True if the model predicts a single number."""
    return subject.task.kind == "regression" and len(subject.data.classes) == 1


def _chart(predicted: np.ndarray, true: np.ndarray, subject: Subject) -> charts.Chart:
    """Predicted and true number of each validation sample."""
    some = np.unique(np.linspace(0, len(true) - 1, min(len(true), _POINTS)).astype(int))
    hover = [
        f"{charts.literal(name(subject.data.validation, int(row)))}<br>true {true[row]:.4g}, predicted "
        f"{predicted[row]:.4g}"
        for row in some
    ]
    what = subject.data.classes[0]
    return charts.scatter(true[some], predicted[some], hover, (f"true {what}", f"predicted {what}"))


def _card(subject: Subject, row: int, loss: float, outputs: torch.Tensor) -> dict[str, Any]:
    samples = subject.data.validation
    found = subject.datamodel.attribute(samples[[row]], "loss")
    _, lowering = ends(found.scores, _CAUSES)
    return {
        "name": name(samples, row),
        "shown": subject.shown.of(samples, [row]),
        "label": label_text(samples, row),
        "said": said(subject, outputs),
        "loss": units.value_text(loss, False),
        "causes": [
            {
                "name": found.names[k],
                "effect": units.minus(units.change_text(float(found.scores[k]), False)),
                "shown": subject.thumbnails(found.names[k], 1),
            }
            for k in lowering
        ],
    }


def said(subject: Subject, outputs: torch.Tensor) -> str:
    """The model's answer: the predicted numbers, or the labels that it finds likely; nothing for many positions."""
    if subject.task.by_position:
        return ""
    mean = subject.task.mean(outputs[None])[0]
    return values_text(mean if subject.task.kind == "regression" else (mean > 0.5).float(), subject.data.classes)
