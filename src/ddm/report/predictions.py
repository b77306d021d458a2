"""Section "Single predictions": the groups behind a few predictions, and the prediction without them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ddm.answers.attribution import Attribution
from ddm.errors import InputError
from ddm.report.numbers import percent, points, signed
from ddm.report.subject import Subject, certainty

_REMOVED = 3
"""Number of groups removed together: the strongest drivers of a prediction."""

_CLASSES, _SAMPLES, _THUMBNAILS = 4, 6, 3


def predictions_section(subject: Subject) -> dict[str, Any]:
    """One card for each chosen prediction."""
    x, y = subject.asked.batch()
    chosen = choose(subject.datamodel.target.outputs(x).cpu(), y)
    return {"split": subject.split, "stories": [_story(subject, title, row) for title, row in chosen]}


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


def _story(subject: Subject, title: str, row: int) -> dict[str, Any]:
    samples, datamodel, classes = subject.asked, subject.datamodel, subject.data.classes
    x, label = samples[row]
    before = datamodel.target.outputs(x[None])[0].softmax(0)
    said = int(before.argmax())
    found = datamodel.attribute((x, label), "probabilities").on(classes[said])
    drivers = _drivers(found)
    names = list(drivers.names)
    removed = datamodel.partition.mask(names)
    after = datamodel.outputs(x[None].to(before), removed[None])[0, 0].softmax(0)
    return {
        "title": title,
        "row": row,
        "label": classes[label],
        "said": classes[said],
        "right": said == label,
        "picture": subject.pictures.of(samples, [row]),
        "drivers": [
            {
                "name": name,
                "effect": points(float(drivers.scores[i])),
                "certainty": certainty(drivers, i),
                "pictures": subject.thumbnails(name, _THUMBNAILS),
            }
            for i, name in enumerate(names)
        ],
        "no_stand_out": drivers.no_stand_out if names else None,
        "changes": _changes(before.cpu().numpy(), after.cpu().numpy(), classes),
        "after": classes[int(after.argmax())],
        "beyond": datamodel.beyond(names) if names else None,
        "samples": _samples(subject, row, names[0], classes[said]) if names else None,
    }


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


def _samples(subject: Subject, row: int, group: str, said: str) -> dict[str, Any]:
    """The training samples of a group that contribute most to its effect on the probability of the prediction."""
    try:
        shares = subject.datamodel.shares(
            subject.asked[row], group, "probabilities", output=said, train=subject.data.train
        )
    except InputError as error:
        return {"group": group, "why": str(error), "top": []}
    top = shares.top(_SAMPLES)
    pictures = subject.pictures.of(subject.data.train, [row for row, _ in top])
    return {
        "group": group,
        "top": [
            {
                "row": sample,
                "share": f"{signed(100 * value, 2)} points",
                "picture": pictures[i] if i < len(pictures) else None,
            }
            for i, (sample, value) in enumerate(top)
        ],
    }
