"""Section "Suspect samples": training samples that look mislabelled."""

from __future__ import annotations

from typing import Any

from ddm.data.shown import name
from ddm.report.numbers import percent
from ddm.report.shown import SHORT
from ddm.report.subject import Subject

_SHOWN = 24


def suspects_section(subject: Subject) -> dict[str, Any]:
    """Samples of harmful or noisy groups whose label the model without their group finds unlikely."""
    found = subject.diagnosed.suspects
    shown = subject.shown.of(subject.data.train, [suspect.row for suspect in found[:_SHOWN]], longest=SHORT)
    return {
        "all": len(found),
        "shown": [
            {
                "row": suspect.row,
                "name": name(subject.data.train, suspect.row),
                "group": suspect.group,
                "label": suspect.label,
                "likely": suspect.likely,
                "probability": percent(suspect.probability),
                "shown": shown[i : i + 1],
            }
            for i, suspect in enumerate(found[:_SHOWN])
        ],
    }
