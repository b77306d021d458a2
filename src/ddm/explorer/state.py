"""State: what one visitor of the page has chosen. Plain values only, so that it fits into an address."""

from __future__ import annotations

from dataclasses import dataclass

OBJECTIVES = {
    "probabilities": "probability of a class",
    "logits": "logit of a class",
    "prediction": "how far the prediction moves",
    "loss": "loss on this image, either way",
    "correctness": "loss on this image, what keeps it low",
}
"""The objectives that say something of one image, as the page calls them."""

PER_CLASS = ("probabilities", "logits")


@dataclass(frozen=True)
class State:
    """What is asked.

    index:     the test image asked about
    picture:   the visitor's own picture instead, as text that ``upload.restore`` reads; empty without one
    label:     the class of that picture; empty where it is unknown
    objective: what is measured
    output:    the class in focus, for objectives of a class; empty for the predicted one
    remove:    groups taken away
    show:      which test images are offered: all, wrong, or ``class NAME``
    page:      which page of them
    """

    index: int = 0
    picture: str = ""
    label: str = ""
    objective: str = "probabilities"
    output: str = ""
    remove: tuple[str, ...] = ()
    show: str = "all"
    page: int = 0
