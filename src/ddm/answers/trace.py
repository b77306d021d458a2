"""Trace: which class, then which cluster within it, is most responsible. L + C fine-tunings instead of L × C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddm.answers.attribution import SIGN, Attribution
from ddm.plots import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Trace:
    """Where a behaviour comes from.

    classes:  effect of removing each class, or None where every group was searched
    clusters: effect of removing each cluster of the class found, or every group
    models:   fine-tuned models this took; ``full`` is what searching every group takes
    verified: the exact effect of the best candidates, if they were retrained without
    """

    classes: Attribution | None
    clusters: Attribution
    full: int
    verified: Attribution | None = None

    @property
    def models(self) -> int:
        """Fine-tunings made."""
        return self.clusters.models + (self.classes.models if self.classes is not None else 0)

    @property
    def class_name(self) -> str | None:
        """The most responsible class, or None where every group was searched."""
        return self.classes.top(1)[0][0] if self.classes is not None else None

    @property
    def group(self) -> str:
        """The most responsible group, by retraining where candidates were verified."""
        return self._answer.top(1)[0][0]

    @property
    def effect(self) -> float:
        """Effect of removing it."""
        return self._answer.top(1)[0][1]

    @property
    def _answer(self) -> Attribution:
        return self.clusters if self.verified is None else self.verified

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return {
            "group": self.group,
            "class": self.class_name,
            "effect": self.effect,
            "sign": SIGN,
            "fine_tunings": self.models,
            "full_search": self.full,
            "classes": self.classes.to_dict() if self.classes is not None else None,
            "clusters": self.clusters.to_dict(),
            "verified": self.verified.to_dict() if self.verified is not None else None,
        }

    def plot(self, count: int = 20) -> Figure:
        """Effects of classes, then of clusters of the class found, as bars; exact effects as diamonds."""
        from ddm.plots import trail

        return trail(self, count)

    def _repr_html_(self) -> str:
        found = [("group", self.group, f"{self.effect:+.4g}")]
        if self.classes is not None:
            name, effect = self.classes.top(1)[0]
            found.insert(0, ("class", name, f"{effect:+.4g}"))
        how = "" if self.verified is None else f" The group is the best of {len(self.verified)} by real retraining."
        return (
            html.paragraph(f"The strongest effect on: {self.clusters.measured}")
            + html.table(("level", "found", "effect of removing it"), found)
            + html.paragraph(f"{self.models} fine-tunings instead of {self.full}.{how} Effect {SIGN}.")
        )

    def __repr__(self) -> str:
        trail = f"class {self.class_name} → group {self.group}" if self.classes is not None else f"group {self.group}"
        verified = ", verified by retraining" if self.verified is not None else ""
        return (
            f"Trace of {self.clusters.measured}: {trail}, effect {self.effect:+.3g}{verified}; "
            f"found with {self.models:,} fine-tunings instead of {self.full:,} ({SIGN})"
        )
