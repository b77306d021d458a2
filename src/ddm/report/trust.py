"""Section 2: how far to trust the page, by the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddm.audit import SAME, Audit
from ddm.words import MEANINGS, RUNS


def trust(audit: Audit | None) -> dict[str, Any] | None:
    """The audit's sentence, a gauge a figure, and all figures as a table; None without an audit."""
    if audit is None:
        return None
    low = _lowest(audit.figures[SAME])
    return {
        "sentence": audit.sentence,
        "gauges": [
            _gauge(name, figure, low) for name, figure in audit.figures[SAME].items() if figure["value"] is not None
        ],
        "chance": _place(0.0, low),
        "runs": [
            {
                "title": f"{run}: {RUNS[run]}",
                "rows": [[name, *(_number(figure[key]) for key in _KEYS)] for name, figure in figures.items()],
            }
            for run, figures in audit.figures.items()
        ],
        "trainings": audit.trainings,
        "seconds": f"{audit.seconds:.1f}",
        "groups": len(audit.groups),
        "unions": audit.unions,
        "orders": audit.orders,
        "samples": audit.samples,
        "size": f"{audit.size:.2f}",
    }


_KEYS = ("value", "low", "high", "retrain", "ceiling")


def _gauge(name: str, figure: Mapping[str, float | None], low: float) -> dict[str, Any]:
    """Places on the track, in percent of its length, and the numbers."""
    return {
        "name": name,
        "meaning": MEANINGS[name],
        "numbers": {key: _number(figure[key]) for key in _KEYS},
        "places": {key: _place(value, low) for key in _KEYS if (value := figure[key]) is not None},
    }


def _lowest(figures: Mapping[str, Mapping[str, float | None]]) -> float:
    """Where the tracks begin: at chance, or as far below it as a figure goes."""
    values = [value for figure in figures.values() for value in figure.values() if value is not None]
    return max(-1.0, min([0.0, *values]))


def _place(value: float, low: float) -> float:
    return round(100 * min(max((value - low) / (1 - low), 0.0), 1.0), 2)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")
