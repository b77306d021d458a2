"""State: what one visitor of the page has chosen. Plain values only, so that it fits into an address."""

from __future__ import annotations

from dataclasses import dataclass

OBJECTIVES = {
    "probabilities": "probability of a class",
    "logits": "logit of a class",
    "prediction": "shift of the prediction",
    "loss": "loss on this image",
    "correctness": "loss on this image, groups that keep it low first",
}
"""The objectives that apply to one image, with their names on the page."""

PER_CLASS = ("probabilities", "logits")
"""Objectives with a value for each class."""


@dataclass(frozen=True)
class State:
    """The choices of one visitor.

    index:     number of the test image
    picture:   an uploaded picture instead, as text that ``upload.restore`` reads; empty without one
    label:     the class of that picture; empty if unknown
    objective: the value that is explained
    output:    the class in focus, for objectives per class; empty for the predicted one
    remove:    groups to remove
    show:      filter of the gallery: all, wrong, or ``class NAME``
    page:      page of the gallery
    """

    index: int = 0
    picture: str = ""
    label: str = ""
    objective: str = "probabilities"
    output: str = ""
    remove: tuple[str, ...] = ()
    show: str = "all"
    page: int = 0
