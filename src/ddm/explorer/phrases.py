"""Effects and answers as sentences, with signs and units in words."""

from __future__ import annotations

import math

import numpy as np

from ddm.errors import InputError
from ddm.explorer.answers import Asked
from ddm.explorer.opened import Opened
from ddm.explorer.state import State

_POINTS = ("probabilities",)


def amount(state: State, effect: float) -> str:
    """An effect in its unit, with its sign: what removing does to the value."""
    if math.isnan(effect):
        return "not measured"
    return f"{100 * effect:+.1f} points" if state.objective in _POINTS else f"{effect:+.3g}"


def value(state: State, number: float) -> str:
    """A value in its unit."""
    return f"{number:.1%}" if state.objective in _POINTS else f"{number:.3g}"


def effect(state: State, focus: str, change: float) -> str:
    """What removing a group does, as the end of a sentence."""
    size = f"{100 * abs(change):.1f} points" if state.objective in _POINTS else f"{abs(change):.3g}"
    if state.objective == "prediction":
        return f"moves the probabilities by {size} (squared distance)"
    way = "raises" if change > 0 else "lowers"
    return f"{way} {subject(state, focus)} by {size}"


def subject(state: State, focus: str) -> str:
    """What is measured, as a noun."""
    return {
        "probabilities": f"the probability of {focus}",
        "logits": f"the logit of {focus}",
        "prediction": "the shift of the prediction",
    }.get(state.objective, "the loss on this image")


def verdict(opened: Opened, state: State, asked: Asked) -> str:
    """What the image is and what the model says."""
    what = "Your picture" if state.picture else f"Test image {state.index}"
    says = opened.classes[asked.predicted]
    if asked.label is None:
        return f"{what}: the model says {says}. Its class is unknown, so the predicted one is taken for it."
    if asked.label == says:
        return f"{what}: it is {asked.label}, and the model says so."
    return f"{what}: it is {asked.label}, but the model says {says}."


def removal(state: State, opened: Opened, before: np.ndarray, after: np.ndarray) -> str:
    """What the removal does to the prediction."""
    if not state.remove:
        return "Nothing is removed yet: tick groups to see the model without them."
    first, second = opened.classes[int(before.argmax())], opened.classes[int(after.argmax())]
    names = ", ".join(state.remove)
    if first == second:
        return f"Without {names} it would still say {first}: {before.max():.1%} → {after.max():.1%}."
    return f"Without {names} it would say {second} ({after.max():.1%}) instead of {first}."


def cost(opened: Opened) -> str:
    """What exact retraining takes, said before it starts, or why there is none."""
    try:
        seconds = opened.seconds
    except InputError as error:
        return refusal(error)
    about = "" if seconds is None else f" Each takes about {max(seconds, 0.1):.1f} s."
    return (
        f"One real retraining without all ticked groups, and one with all groups to compare with.{about} "
        "A retraining that was made before takes no time."
    )


def refusal(error: InputError) -> str:
    """Why something cannot be done, as a sentence of its own."""
    sentence = str(error)
    return sentence[:1].upper() + sentence[1:]
