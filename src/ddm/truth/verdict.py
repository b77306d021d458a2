"""The verdict of an audit: for which uses a datamodel can be trusted, in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ddm.truth.figures import FIGURES, Figure

KEYS = ("value", "low", "high", "retrain", "ceiling")
"""The numbers of each figure; see ``ddm.truth.audit.Audit``."""

Numbers = Mapping[str, float | None]
"""The numbers of a figure."""

YES, NO, POOR, UNSURE, NOISE = "yes", "no", "poor", "unsure", "noise"

REJECTED = (NO, NOISE)
"""Judgements after which an answer must not be shown as one that can be trusted."""

_ANSWERS = {
    YES: "yes",
    NO: "no",
    POOR: "as well as another retraining, which is poorly here",
    UNSURE: "not known yet, retrain more",
    NOISE: "not here, retrainings disagree",
}

_NOISE = 0.1
"""If another retraining scores less than this, retraining is mostly noise and cannot judge a datamodel."""

_AGREEMENT = 0.25
"""Correlation of two retrainings that is enough to order groups by."""

_MOST = 10
"""The largest factor by which groups are said to have to grow."""


def verdict(figures: Mapping[str, Numbers], error: float | None) -> str:
    """The verdict: one short sentence for each use, and one on the size of effects."""
    judged = judge_all(figures)
    sentences = [f"{FIGURES[name].use}: {_answer(figures[name], how)}" for name, how in judged.items()]
    if not sentences:
        return "Nothing could be measured, so retrain without more groups."
    if error is not None:
        sentences.append(f"Effects on a prediction: right within ±{100 * error:.2g} points")
    for name, figure in FIGURES.items():
        value = figures[name]["value"] if name in figures else None
        if value is not None and not figure.usual[0] <= value <= figure.usual[1]:
            sentences.append(figure.warning.format(value=value))
    return ". ".join(sentences) + "."


def judge_all(figures: Mapping[str, Numbers]) -> dict[str, str]:
    """The judgement of every figure that was measured and that supports a use, by name."""
    measured = {name: figures[name] for name in FIGURES if name in figures and figures[name]["value"] is not None}
    return {name: judge(FIGURES[name], numbers) for name, numbers in measured.items() if FIGURES[name].use is not None}


def judge(figure: Figure, numbers: Numbers) -> str:
    """The judgement of a figure.

    yes:    the interval lies above chance, and the value reaches the bar
    poor:   the interval lies above chance, and the value reaches another retraining's score, but that score is below
            the figure's floor
    noise:  another retraining scores close to nothing
    no:     the value is below the bar, and so is the interval
    unsure: the value is below the bar, but the interval contains the bar
    """
    value, low, high, retrain, ceiling = (numbers[key] for key in KEYS)
    assert value is not None
    if retrain is not None and retrain < _NOISE:
        return NOISE
    reference = ceiling if ceiling is not None else retrain
    enough = figure.share * max(reference or 0.0, 0.0)
    if retrain is not None:
        enough = min(enough, retrain)
    bar = max(figure.floor, enough)
    above_chance = low is not None and low > 0
    if above_chance and value >= bar:
        return YES
    if above_chance and value >= enough and retrain is not None and retrain < figure.floor:
        return POOR
    return UNSURE if low is None or high is None or high >= bar else NO


def _answer(numbers: Numbers, judgement: str) -> str:
    """The judgement in words. Where retrainings disagree, it says how much larger groups would have to be."""
    if judgement not in (NOISE, POOR):
        return _ANSWERS[judgement]
    factor = growth(numbers["retrain"] or 0.0)
    size = f"about {factor:.2g} times larger" if factor < _MOST else f"more than {_MOST} times larger"
    return f"{_ANSWERS[judgement]} (groups would have to be {size})"


def growth(agreement: float) -> float:
    """By how much groups must grow for two retrainings to agree on their order.

    agreement: the correlation of two retrainings, signal / (signal + noise). The effect of a group grows with its size
               and the noise does not, so the signal grows with its square.
    """
    known = min(max(agreement, 1e-3), 0.999)
    return max(1.0, math.sqrt(_AGREEMENT / (1 - _AGREEMENT) * (1 - known) / known))
