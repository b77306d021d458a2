"""State: what one visitor of the page has chosen. Plain values only, so that it fits into an address."""

from __future__ import annotations

from dataclasses import dataclass

OBJECTIVES = {
    "value": "predicted value",
    "probabilities": "probability of a class",
    "logits": "logit of a class",
    "prediction": "shift of the prediction",
    "loss": "loss on this sample",
    "correctness": "loss on this sample, groups that keep it low first",
}
"""The objectives that apply to one sample, with their names on the page."""

PER_CLASS = ("value", "probabilities", "logits")
"""Objectives with a value for each class or output."""

_CLASSES = ("probabilities", "logits", "prediction", "loss", "correctness")
_OF_KIND = {
    "regression": ("value", "prediction", "loss"),
    "multilabel": ("probabilities", "logits", "prediction", "loss"),
    "tokens": ("loss", "prediction"),
    "pixels": ("loss", "prediction"),
}


def objectives_of(kind: str) -> dict[str, str]:
    """The objectives that a kind of task has, the usual one first, with their names on the page."""
    return {name: OBJECTIVES[name] for name in _OF_KIND.get(kind, _CLASSES)}


@dataclass(frozen=True)
class State:
    """The choices of one visitor.

    index:     number of the test sample
    picture:   an uploaded picture instead, as text that ``upload.restore`` reads; empty without one
    typed:     a typed text instead, or the values of a row as JSON; empty without one
    label:     the class of that picture, text or row; empty if unknown
    objective: the value that is explained
    output:    the class in focus, for objectives per class; empty for the predicted one
    remove:    groups to remove
    show:      filter of the gallery: all, wrong, or ``class NAME``
    page:      page of the gallery
    """

    index: int = 0
    picture: str = ""
    typed: str = ""
    label: str = ""
    objective: str = "probabilities"
    output: str = ""
    remove: tuple[str, ...] = ()
    show: str = "all"
    page: int = 0

    @property
    def is_own(self) -> bool:
        """True if the visitor asks about a sample of their own."""
        return bool(self.picture or self.typed)
