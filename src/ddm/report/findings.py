"""The first sentences of a page whose model has no classes: how good it is, and which groups harm and help most."""

from __future__ import annotations

import numpy as np

from ddm.answers.objectives import resolve
from ddm.answers.scores import objectives_judging
from ddm.plots import units
from ddm.report.effects import ends
from ddm.report.subject import Subject

_NAMED = 3


def findings(subject: Subject) -> list[str]:
    """Sentences about the model and its groups."""
    values = [f"{what} {value}" for what, value in measured(subject)]
    sentences = [f"On the validation samples: {', '.join(values)}."]
    helping, harming = ends(subject.effects("loss"), _NAMED)
    lower, higher = (_listed(subject, numbers) for numbers in (harming, helping))
    sentences.append(
        f"Without one of these groups the validation loss would be lower: {lower}."
        if lower
        else "No group clearly raises the validation loss."
    )
    if higher:
        sentences.append(f"The model needs these groups most, the loss is higher without them: {higher}.")
    return sentences


def measured(subject: Subject) -> list[tuple[str, str]]:
    """The loss and the other figures on the validation samples: what each is, and its value."""
    task, (x, y) = subject.task, subject.data.validation.batch()
    outputs = subject.datamodel.target.outputs(x).cpu()
    found = []
    for objective in (resolve("loss", task), *objectives_judging(task)):
        value = float(objective.values([outputs[None]], outputs, y))
        what = "loss" if objective.name == "loss" else objective.meaning.split(",")[0]
        found.append((what, units.value_text(value, objective.fraction)))
    return found


def _listed(subject: Subject, numbers: np.ndarray) -> str:
    """Groups with their effect on the loss, without those that may be noise."""
    clear = [int(k) for k in numbers if not subject.certainty("loss", int(k)).noise]
    effects = subject.effects("loss")
    return ", ".join(
        f"{subject.partition.names[k]} ({units.minus(units.change_text(effects[k], False))})" for k in clear
    )
