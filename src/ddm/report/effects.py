"""Section "The effects of groups": the groups that help and harm most."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddm.answers.diagnosis import Diagnosis
from ddm.report import charts
from ddm.report.numbers import percent, plural, points, raised, raised_value, signed
from ddm.report.subject import Certainty, Subject

_SHOWN = 8
"""Maximum number of helpful groups, and of harmful ones."""

_COLUMNS = 20
"""Maximum number of classes in the heat map: those that change most."""

_THUMBNAILS = 3


def effects_section(subject: Subject) -> dict[str, Any]:
    """The groups with the largest effects on the loss, of either sign: as bars, as tables, and per class."""
    helping, harming = ends(subject.effects("loss"), _SHOWN)
    chosen = np.concatenate([helping, harming[::-1]])
    names = [subject.partition.names[k] for k in chosen]
    refined, found = subject.loss, subject.diagnosis
    return {
        "loss": f"{subject.value('loss'):.4g}" if found is None else f"{subject.value('loss'):.4f}",
        "second": _second(subject),
        "has_classes": found is not None,
        "bars": charts.bars(
            names,
            subject.effects("loss")[chosen],
            [subject.is_bad(name) for name in names],
            [_hover(subject, int(k)) for k in chosen],
            "change of the loss without the group: ← falls · rises →",
            None if refined is None else refined.of(chosen),
        ),
        "basis": None if refined is None else refined.basis,
        "no_stand_out": None if refined is None else refined.no_stand_out,
        "helping": _rows(subject, helping),
        "harming": _rows(subject, harming),
        "classwise": None if found is None else {what: _classwise(found, subject, chosen, what) for what in _CALLED},
        "clear": found is None or bool(found.harmful or found.noisy),
        "rows": len(chosen),
        "left_out": 0 if found is None else max(0, len(found.classes) - _COLUMNS),
    }


def _second(subject: Subject) -> dict[str, str]:
    """The second figure in words: its name as the heading of a column, and its value in a sentence."""
    name, value = subject.second, subject.value(subject.second)
    words = name.replace("-", " ").replace("f1", "F1")
    if name == "accuracy" and subject.diagnosis is not None:
        return {"heading": "accuracy, points", "sentence": f"{percent(value)} of the validation samples are right"}
    unit = ", points" if subject.is_fraction(name) else ""
    text = percent(value) if subject.is_fraction(name) else f"{value:.4g}"
    return {"heading": words + unit, "sentence": f"the {words} is {text}"}


def ends(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the most positive and the most negative values, at most ``count`` of each, largest first."""
    order = np.argsort(-np.where(np.isfinite(values), values, 0.0), kind="stable")
    raising = [k for k in order if values[k] > 0][:count]
    lowering = [k for k in order[::-1] if values[k] < 0][:count]
    return np.array(raising, dtype=int), np.array(lowering, dtype=int)


def _rows(subject: Subject, numbers: np.ndarray) -> list[dict[str, Any]]:
    """The rows of these groups, without those whose effect on the loss may be noise."""
    return [_row(subject, int(k)) for k in numbers if not subject.certainty("loss", int(k)).noise]


def _row(subject: Subject, number: int) -> dict[str, Any]:
    name, second = subject.partition.names[number], subject.second
    loss, other = (float(subject.effects(what)[number]) for what in ("loss", second))
    return {
        "name": name,
        "size": plural(int(subject.partition.sizes[number]), "sample"),
        "loss": subject.effect_text("loss", number),
        "loss_certainty": subject.certainty("loss", number),
        "second": subject.effect_text(second, number).removesuffix(" points"),
        "second_certainty": subject.certainty(second, number),
        "recall": _most_changed(subject, number),
        "words": f"Removing it {raised_value('the loss', loss)} and "
        f"{(raised if subject.is_fraction(second) else raised_value)(second.replace('-', ' '), other)}.",
        "shown": subject.thumbnails(name, _THUMBNAILS),
    }


def _most_changed(subject: Subject, number: int) -> dict[str, str] | None:
    """The class whose recall changes most, and by how many points; None if no recall changes."""
    if subject.diagnosis is None:
        return None
    recall = np.nan_to_num(subject.diagnosis.effects["recall"][number])
    label = int(np.abs(recall).argmax())
    if not recall[label]:
        return None
    return {"name": subject.diagnosis.classes[label], "effect": signed(100 * float(recall[label]), 1)}


def _classwise(found: Diagnosis, subject: Subject, chosen: np.ndarray, what: str) -> charts.Chart:
    """Effects of the chosen groups on the recall or F1 of each class, in points."""
    values = found.effects[what][chosen]
    columns = np.sort(np.argsort(-np.abs(np.nan_to_num(values)).max(0, initial=0), kind="stable")[:_COLUMNS])
    names = [subject.partition.names[k] for k in chosen]
    classes = [found.classes[label] for label in columns]
    shown = 100 * values[:, columns]
    hover = [
        [
            f"without <b>{charts.literal(group)}</b><br>"
            f"{_CALLED[what]} of {charts.literal(label)}: {points(value / 100)}"
            for label, value in zip(classes, row, strict=True)
        ]
        for group, row in zip(names, shown, strict=True)
    ]
    text = [[f"{value:+.0f}".replace("-", "−") if abs(value) >= 0.5 else "" for value in row] for row in shown]
    return charts.heat(shown, names, classes, hover, text=text, titles=("group removed", f"class ({_CALLED[what]})"))


_CALLED = {"recall": "recall", "f1": "F1"}


def _known(certainty: Certainty) -> str:
    return f" ({certainty.text})" if certainty.text else ""


def _hover(subject: Subject, number: int) -> str:
    second = subject.second
    return (
        f"without <b>{charts.literal(subject.partition.names[number])}</b> "
        f"({plural(int(subject.partition.sizes[number]), 'sample')})<br>"
        f"loss {subject.effect_text('loss', number)}{_known(subject.certainty('loss', number))}<br>"
        f"{second.replace('-', ' ')} {subject.effect_text(second, number)}{_known(subject.certainty(second, number))}"
    )
