"""Section "How far to trust this page": the figures of the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddm.answers.intervals import describe_evidence
from ddm.truth.audit import RUNS, SAME, Audit
from ddm.truth.evidence import Evidence
from ddm.truth.figures import label_of, meaning_of
from ddm.truth.verdict import KEYS


def evidence_sentence(evidence: Evidence | None) -> str | None:
    """How many retrainings refine the effects of the page; None before any."""
    return None if evidence is None else describe_evidence(evidence)


def trust_section(audit: Audit | None) -> dict[str, Any] | None:
    """The audit's sentence, a gauge for each figure, and all figures as a table; None without an audit."""
    if audit is None:
        return None
    track = _track(audit.figures[SAME])
    return {
        "sentence": audit.sentence,
        "gauges": [
            _gauge(name, figure, track) for name, figure in audit.figures[SAME].items() if figure["value"] is not None
        ],
        "chance": _place(0.0, track),
        "perfect": _place(1.0, track),
        "runs": [
            {
                "title": f"{run}: {RUNS[run]}",
                "rows": [[label_of(name), *(_number(figure[key]) for key in KEYS)] for name, figure in figures.items()],
            }
            for run, figures in audit.figures.items()
        ],
        "trainings": audit.trainings,
        "seconds": f"{audit.seconds:.1f}",
        "groups": len(audit.groups),
        "unions": audit.unions,
        "orders": audit.orders,
        "samples": audit.samples,
    }


def _gauge(name: str, figure: Mapping[str, float | None], track: tuple[float, float]) -> dict[str, Any]:
    """Places on the track, in percent of its length, and the numbers."""
    return {
        "name": label_of(name),
        "meaning": meaning_of(name),
        "numbers": {key: _number(figure[key]) for key in KEYS},
        "places": {key: _place(value, track) for key in KEYS if (value := figure[key]) is not None},
    }


def _track(figures: Mapping[str, Mapping[str, float | None]]) -> tuple[float, float]:
    """Both ends of all tracks: chance (0) and perfect (1), or as far beyond as a figure goes, from −1 to 2 at most."""
    values = [value for figure in figures.values() for key in KEYS if (value := figure[key]) is not None]
    return max(-1.0, min([0.0, *values])), min(2.0, max([1.0, *values]))


def _place(value: float, track: tuple[float, float]) -> float:
    low, high = track
    return round(100 * min(max((value - low) / (high - low), 0.0), 1.0), 2)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")
