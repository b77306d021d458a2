"""Section "The errors and their causes": the groups that cause each frequent confusion."""

from __future__ import annotations

from typing import Any

from ddm.answers.confusions import Confusion
from ddm.report import charts
from ddm.report.numbers import plural, points
from ddm.report.shown import SHORT
from ddm.report.subject import Subject

_CONFUSIONS, _CAUSES, _PICTURES, _SNIPPETS, _THUMBNAILS = 6, 3, 6, 2, 4

_TEXT = 25
"""Up to this many classes the confusion matrix shows its counts."""


def errors_section(subject: Subject) -> dict[str, Any]:
    """The confusion matrix of the validation samples, and the causes of each frequent confusion."""
    found = subject.diagnosed
    wrong = int(found.counts.sum() - found.counts.trace())
    return {
        "wrong": wrong,
        "samples": plural(int(found.counts.sum()), "validation sample"),
        "matrix": _matrix(subject),
        "confusions": [_confusion(subject, confusion) for confusion in found.confusions[:_CONFUSIONS]],
        "more": plural(left, "less frequent kind") if (left := len(found.confusions) - _CONFUSIONS) > 0 else None,
    }


def _matrix(subject: Subject) -> charts.Chart:
    """The confusion matrix. Only errors are coloured, in the colour for bad."""
    found = subject.diagnosed
    coloured = found.counts.astype(float)
    coloured[range(len(coloured)), range(len(coloured))] = 0
    hover = [
        [
            f"{charts.literal(true)} taken for {charts.literal(said)}: {count}"
            if true != said
            else f"{charts.literal(true)} recognised: {count}"
            for said, count in zip(found.classes, row, strict=True)
        ]
        for true, row in zip(found.classes, found.counts, strict=True)
    ]
    text = [[str(count) if count else "" for count in row] for row in found.counts]
    return charts.heat(
        coloured,
        found.classes,
        found.classes,
        hover,
        colour=charts.BAD,
        text=text if len(found.classes) <= _TEXT else None,
        titles=("true class", "predicted class"),
    )


def _rows(subject: Subject, confusion: Confusion) -> tuple[int, ...]:
    """The confused samples that are shown: fewer where they are not pictures."""
    return confusion.rows[: _PICTURES if subject.shown.images else _SNIPPETS]


def _confusion(subject: Subject, confusion: Confusion) -> dict[str, Any]:
    return {
        "true": confusion.true,
        "predicted": confusion.predicted,
        "count": plural(confusion.count, "sample"),
        "shown": subject.shown.of(subject.data.validation, _rows(subject, confusion), longest=SHORT),
        "causes": [
            {"name": name, "effect": points(effect), "shown": subject.thumbnails(name, _THUMBNAILS)}
            for name, effect in confusion.causes[:_CAUSES]
            if effect < 0
        ],
    }
