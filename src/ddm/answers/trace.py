"""Trace: the most responsible class, then the most responsible cluster inside it.

With L classes of C clusters each, this needs L + C fine-tunings instead of L × C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.answers.attribution import SIGN, Attribution, attribute, fit_attribution
from ddm.answers.objectives import ObjectiveLike, resolve
from ddm.answers.question import Batch
from ddm.answers.saving import save
from ddm.compute import progress
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.reach import beyond_reach
from ddm.groups.partition import Partition
from ddm.plots import html, units
from ddm.truth.refined import RefinedModels
from ddm.truth.retraining import NO_ROWS, Retraining, group_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Trace:
    """The group that a behaviour comes from.

    classes:  effect of removing each class; None if the search went through every group
    clusters: effect of removing each cluster of the most responsible class, or each group
    full:     number of fine-tunings that a search through every group needs
    verified: effects of the best candidates by retraining without each, if verification was requested
    """

    classes: Attribution | None
    clusters: Attribution
    full: int
    verified: Attribution | None = None

    @property
    def models(self) -> int:
        """Number of fine-tunings that the search took."""
        return self.clusters.models + (self.classes.models if self.classes is not None else 0)

    @property
    def class_name(self) -> str | None:
        """The most responsible class; None if the search went through every group."""
        return self.classes.top(1)[0][0] if self.classes is not None else None

    @property
    def group(self) -> str:
        """The most responsible group, by retraining if candidates were verified."""
        return self._answer.top(1)[0][0]

    @property
    def effect(self) -> float:
        """Effect of removing the most responsible group."""
        return self._answer.top(1)[0][1]

    @property
    def _answer(self) -> Attribution:
        return self.clusters if self.verified is None else self.verified

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 90 % interval of the effect; None without retrainings, or if the group was verified."""
        return self._answer.interval(self._best)

    @property
    def effect_text(self) -> str:
        """The effect with its unit and, where there is one, its interval."""
        return self._answer.effect_text(self._best)

    @property
    def stands_out(self) -> bool:
        """False if the effect of the most responsible group may be noise. True without intervals."""
        return bool(self._answer.stands_out[self._best])

    @property
    def no_stand_out(self) -> str | None:
        """A sentence that says that no group stands out; None if the most responsible one does."""
        if self.stands_out:
            return None
        where = "" if self.classes is None else f" in class {self.class_name}"
        if self._answer.doubt is not None:
            return f"No group is named. {self._answer.doubt}"
        return self._answer.may_be_noise.replace("strongest effect,", f"strongest effect{where},", 1)

    @property
    def _best(self) -> int:
        return int(self._answer.order()[0])

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {
            "group": self.group,
            "class": self.class_name,
            "effect": self.effect,
            "low": self.interval[0] if self.interval is not None else None,
            "high": self.interval[1] if self.interval is not None else None,
            "stands_out": self.stands_out if self.interval is not None else None,
            "sign": SIGN,
            "fine_tunings": self.models,
            "full_search": self.full,
            "classes": self.classes.to_dict() if self.classes is not None else None,
            "clusters": self.clusters.to_dict(),
            "verified": self.verified.to_dict() if self.verified is not None else None,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per class and per group that was searched, the strongest effect of each level first.

        ``level`` is class or group. ``retrained`` is the effect by retraining, for groups that were verified.
        """
        import pandas as pd

        levels = [("class", self.classes), ("group", self.clusters)]
        parts = [_frame(level, found) for level, found in levels if found is not None]
        table = pd.concat(parts, ignore_index=True)
        if self.verified is not None:
            exact = dict(zip(self.verified.names, self.verified.scores.tolist(), strict=True))
            groups = table["level"] == "group"
            table["retrained"] = table["name"].map(exact).where(groups)
        return table

    def save(self, path: Path | str) -> None:
        """Write as a table if the path ends in .csv or .parquet, else as JSON."""
        save(self, path)

    def plot(self, count: int = 20) -> Figure:
        """Bars show effects of classes, then of the clusters of the strongest one; diamonds show verified effects."""
        from ddm.plots import trail

        return trail(self, count)

    def _repr_html_(self) -> str:
        rows = [("group", self.group, self.effect_text)]
        if self.classes is not None:
            name, effect = self.classes.top(1)[0]
            rows.insert(0, ("class", name, units.change_text(effect, self.clusters.fraction)))
        verified = "" if self.verified is None else f"Verified by retraining ({len(self.verified)} candidates)."
        notes = [f"{self._cost}." if self._cost else "", verified, f"Effect {SIGN}."]
        return (
            html.paragraph(self.no_stand_out or f"The strongest effect on: {self.clusters.measured}")
            + html.table(("level", "strongest", "effect of removing it"), rows)
            + html.paragraph(" ".join(note for note in notes if note))
        )

    def __repr__(self) -> str:
        trail = f"class {self.class_name} → group {self.group}" if self.classes is not None else f"group {self.group}"
        verified = ", verified by retraining" if self.verified is not None else ""
        found = trail if self.stands_out else f"no single group stands out; strongest: {trail}"
        cost = f"; found with {self._cost}" if self._cost else ""
        return f"Trace of {self.clusters.measured}: {found}, effect {self.effect_text}{verified}{cost} ({SIGN})"

    @property
    def _cost(self) -> str:
        """Say how many fine-tunings the search by class saved; empty if it saved none."""
        return f"{self.models:,} fine-tunings instead of {self.full:,}" if self.models < self.full else ""


def _frame(level: str, found: Attribution) -> pd.DataFrame:
    """The effects of one level on the value in focus, strongest first."""
    import pandas as pd

    found = found.sort()
    columns: dict[str, Any] = {"level": level, "name": found.names, "samples": found.sizes}
    columns[f"effect on {found.outputs[found.focus]}"] = found.scores
    if found.has_intervals:
        columns |= {"low": found.low[:, found.focus], "high": found.high[:, found.focus]}
    return pd.DataFrame(columns)


def trace(
    models: Models,
    partition: Partition,
    batch: Batch,
    objective: ObjectiveLike,
    class_models: Models | None = None,
) -> Trace:
    """Search the classes and then the clusters of the most responsible one; without ``class_models``, every group."""
    clusters, classes = designs.leave_one_out(len(partition)), partition.by_class()
    if class_models is None or classes is None or len(classes) == len(partition):
        return Trace(None, attribute(models, partition, clusters, batch, objective), len(partition))
    upper = attribute(class_models, classes, designs.leave_one_out(len(classes)), batch, objective)
    parent = np.asarray(classes.parents)[upper.order()[0]]
    inside = np.flatnonzero(partition.parents == parent)
    if isinstance(models, RefinedModels):  # it evaluates every group anyway, and all of them show what is usual
        every = attribute(models, partition, clusters, batch, objective)
        lower = replace(every.of(inside), beyond=beyond_reach(partition, clusters[inside]))
    else:
        lower = attribute(models, partition, clusters[inside], batch, objective, chosen=inside)
    return Trace(upper, lower, len(partition))


def verify_trace(
    found: Trace, count: int, retraining: Retraining, partition: Partition, batch: Batch, objective: ObjectiveLike
) -> Trace:
    """The trace with the effects of its ``count`` best candidates measured by retraining.

    Effects compare with retraining on all groups. The target itself may have been trained with more threads, and then
    differs by rounding.
    """
    chosen = np.flatnonzero(partition.mask([name for name, _ in found.clusters.top(count)]))
    _announce(len(chosen), retraining.estimate_seconds())
    removed = designs.leave_one_out(len(partition))[chosen]
    removals = [NO_ROWS, *group_rows(partition, removed)]
    target = retraining.target
    outputs = retraining.outputs(removals, 0, batch[0]).to(target.device)
    resolved, weights = resolve(objective, target.task), np.ones(len(chosen))
    effects = fit_attribution(resolved, outputs[:, None], batch[1], partition, removed, weights, chosen, chosen)
    return replace(found, verified=effects)


def _announce(groups: int, seconds: float | None) -> None:
    cost = "" if seconds is None else f" Each takes about {max(seconds, 0.1):.1f} s."
    progress.note(
        f"Verifying by {groups + 1} retrainings: {groups} without one group each, and one with all groups to compare "
        f"with.{cost}"
    )
