"""Section "Suspect samples": training samples that look mislabelled."""

from __future__ import annotations

from typing import Any

from ddm.report.numbers import percent
from ddm.report.subject import Subject

_SHOWN = 24


def suspects_section(subject: Subject) -> dict[str, Any]:
    """Samples of harmful or noisy groups whose label the model without their group finds unlikely."""
    found = subject.diagnosis.suspects
    pictures = subject.pictures.of(subject.data.train, [suspect.row for suspect in found[:_SHOWN]])
    return {
        "all": len(found),
        "shown": [
            {
                "row": suspect.row,
                "group": suspect.group,
                "label": suspect.label,
                "likely": suspect.likely,
                "probability": percent(suspect.probability),
                "picture": pictures[i] if i < len(pictures) else None,
            }
            for i, suspect in enumerate(found[:_SHOWN])
        ],
    }
