"""Section "The model": what it is, and how good."""

from __future__ import annotations

from typing import Any

from ddm.plots.units import size_text
from ddm.report.numbers import percent, plural


def model_section(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run (``ddm.runs.run.summarise``) as tiles and sentences."""
    samples, sizes = facts["samples"], facts["group_sizes"]
    scores = facts["loss"] if facts.get("accuracy") is None else facts["accuracy"]
    return {
        "network": facts["network"],
        "data": facts["data"],
        "parameters": f"{facts['parameters']:,}",
        "score": "loss" if facts.get("accuracy") is None else "right",
        "splits": [
            {"name": split, "samples": f"{samples[split]:,}", "score": _score(facts, scores[split])}
            for split in ("train", "validation", "test")
        ],
        "checkpoints": plural(facts["checkpoints"], "checkpoint"),
        "groups": facts["groups"],
        "sizes": (sizes["smallest"], plural(sizes["largest"], "sample")),
        "matching": facts["matching"],
        "alignment": None if facts["alignment"] is None else f"{facts['alignment']:.2f}",
        "size": size_text(facts["synset_bytes"]),
        "stopped": list(facts["stopped"]),
    }


def _score(facts: dict[str, Any], value: float) -> str:
    """The accuracy on a split, or the loss where samples have no class."""
    return f"{value:.4g}" if facts.get("accuracy") is None else percent(value)
