"""Section "The model": what it is, and how good."""

from __future__ import annotations

from typing import Any

from ddm.report.numbers import percent, plural


def model_section(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run (``ddm.runs.run.summarise``) as tiles and sentences."""
    samples, accuracy, sizes = facts["samples"], facts["accuracy"], facts["group_sizes"]
    return {
        "network": facts["network"],
        "data": facts["data"],
        "parameters": f"{facts['parameters']:,}",
        "splits": [
            {"name": split, "samples": f"{samples[split]:,}", "accuracy": percent(accuracy[split])}
            for split in ("train", "validation", "test")
        ],
        "checkpoints": plural(facts["checkpoints"], "checkpoint"),
        "groups": facts["groups"],
        "sizes": (sizes["smallest"], plural(sizes["largest"], "sample")),
        "matching": facts["matching"],
        "alignment": f"{facts['alignment']:.2f}",
        "size": f"{facts['synset_bytes'] / 1024:,.0f} KiB",
        "stopped": list(facts["stopped"]),
    }
