"""Section "The model": what it is, and how good."""

from __future__ import annotations

from typing import Any

from ddm.plots.units import size_text
from ddm.report.numbers import percent, plural


def model_section(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run (``ddm.runs.run.summarise``) as tiles and sentences."""
    samples, sizes = facts["samples"], facts["group_sizes"]
    score = "accuracy" if "accuracy" in facts else "absolute-error"
    return {
        "network": facts["network"],
        "data": facts["data"],
        "parameters": f"{facts['parameters']:,}",
        "score": "right" if score == "accuracy" else "mean absolute error",
        "splits": [
            {"name": split, "samples": f"{samples[split]:,}", "score": _said(score, facts[score][split])}
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


def _said(score: str, value: float) -> str:
    """The accuracy on a split, or the error of predicted numbers."""
    return percent(value) if score == "accuracy" else f"{value:.4g}"
