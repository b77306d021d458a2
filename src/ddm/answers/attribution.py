"""Attribution: y(p) ≈ W·p + b by weighted least squares (Eq. 8), over the perturbations of a design.

The effect of removing group κ is ``objective(without κ) − objective(with all) = −W_κ``: *positive = removing it raises
the value*. Tables, plots and files show effects; ``W`` is the paper's matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ddm.answers.intervals import Intervals
from ddm.answers.objectives import Objective, ObjectiveLike, resolve
from ddm.answers.question import Batch
from ddm.answers.saving import save
from ddm.counterfactual import designs
from ddm.counterfactual.designs import Weights
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.reach import beyond_reach
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.plots import html, units
from ddm.truth.refined import RefinedModels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SIGN = "positive: removing the group raises the value; negative: removing it lowers the value"

_COMPARABLE = 0.5
"""Effects of at least this share of the strongest one are comparable with it."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """The effect of removing each group on an objective.

    names:    names of the K groups
    matrix:   ``(K, O)`` effect of removing each group on each of O values
    errors:   ``(K, O)`` standard errors of the effects, NaN where the design has no residual degrees of freedom
    b:        ``(O,)`` intercept of y(p) = W·p + b
    baseline: ``(O,)`` the values with all groups
    outputs:  a name for each value
    objective, meaning: name of the objective, and what it measures in words
    signed:   True if groups are ranked by the absolute effect
    focus:    number of the value that ``scores`` and ``top`` use
    sizes:    ``(K,)`` samples in each group
    models:   number of fine-tuned models that were needed
    fraction: True if the values are fractions, whose effects people read in points
    beyond:   a sentence that says why some of these models are rough, because they lack too much data; None if none is
    low, high: ``(K, O)`` ends of a 90 % interval of each effect, NaN without retrainings
    basis:    what the intervals rest on; None without retrainings
    measured_alone: ``(K,)`` True for groups whose effect was measured by retraining without them, in this run
    one_way:  True if every removal moves the value in the same direction
    usual:    ``(O,)`` the effect of a group that does not stand out: 0, or the median effect if ``one_way``
    doubt:    a sentence that says why the audit rejects such answers; None if it does not
    """

    names: tuple[str, ...]
    matrix: np.ndarray
    errors: np.ndarray
    b: np.ndarray
    baseline: np.ndarray
    outputs: tuple[str, ...]
    objective: str
    meaning: str
    signed: bool
    focus: int
    sizes: np.ndarray
    models: int
    fraction: bool = False
    beyond: str | None = None
    low: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    high: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    basis: str | None = None
    measured_alone: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))
    one_way: bool = False
    usual: np.ndarray = field(default_factory=lambda: np.empty(0))
    doubt: str | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.full_like(self.matrix, np.nan))
        if not self.measured_alone.size:
            object.__setattr__(self, "measured_alone", np.zeros(len(self.names), dtype=bool))
        if not self.usual.size:
            known = self.matrix[~np.isnan(self.matrix).any(1)]  # np.nanmedian is slow
            usual = np.median(known, axis=0) if self.one_way and len(known) else np.zeros(self.matrix.shape[1])
            object.__setattr__(self, "usual", usual)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def W(self) -> np.ndarray:  # noqa: N802 - the paper's symbol
        """The paper's attribution matrix ``(K, O)``: what the presence of each group contributes, −effect."""
        return -self.matrix

    @property
    def scores(self) -> np.ndarray:
        """Effect of removing each group ``(K,)`` on the value in focus."""
        column: np.ndarray = self.matrix[:, self.focus]
        return column

    @property
    def has_intervals(self) -> bool:
        """True if retrainings give each effect an interval."""
        return self.basis is not None

    @property
    def stands_out(self) -> np.ndarray:
        """True for groups ``(K,)`` whose effect is more than noise: its interval excludes the usual effect.

        If every removal moves the value in the same direction, an effect must be larger than usual. Without intervals
        nothing is known, and all are True. If the audit rejects such answers, only retrained groups can stand out.
        """
        usual = self.usual[self.focus]
        low, high = self.low[:, self.focus], self.high[:, self.focus]
        above, below = low > usual, high < usual
        if self.one_way:
            above, below = above & (usual >= 0), below & (usual <= 0)
        out: np.ndarray = np.isnan(low) | above | below
        return out if self.doubt is None else out & self.measured_alone

    @property
    def noise(self) -> str:
        """A sentence that explains the mark of effects that do not stand out."""
        if self.doubt is not None:
            return self.doubt.removesuffix(".")
        if not self.one_way:
            return "within noise: the interval includes 0"
        usual = units.change_text(float(self.usual[self.focus]), self.fraction)
        return f"within noise: the interval does not lie beyond the median effect of all groups, {usual}"

    @property
    def no_stand_out(self) -> str | None:
        """A sentence that says that no group stands out; None if one does, or without intervals.

        Groups with less than half of the strongest effect do not count, however sure their effect is.
        """
        strength = np.nan_to_num(self._strength, nan=-np.inf)
        least = strength.max() - (1 - _COMPARABLE) * abs(strength.max())
        if self.stands_out[strength >= least].any():
            return None
        return self.may_be_noise if self.doubt is None else f"No group is named. {self.doubt}"

    @property
    def may_be_noise(self) -> str:
        """A sentence that says that the strongest effect may be noise."""
        best = int(self.order()[0])
        median = units.change_text(float(self.usual[self.focus]), self.fraction)
        usual = f" (the median effect of all groups is {median})" if self.one_way else ""
        return (
            f"No single group stands out: the strongest effect, {self.effect_text(best)} without {self.names[best]}, "
            f"may be noise{usual}."
        )

    def interval(self, group: int) -> tuple[float, float] | None:
        """The interval of a group's effect on the value in focus; None if there is none."""
        low, high = float(self.low[group, self.focus]), float(self.high[group, self.focus])
        return (low, high) if np.isfinite(low) and np.isfinite(high) else None

    @property
    def measured(self) -> str:
        """The value that ``scores`` are effects on, in words."""
        return self.meaning.replace("each class", f"class {self.outputs[self.focus]}")

    def on(self, output: str | int) -> Attribution:
        """The same attribution with another value in focus, by name or number."""
        if str(output) in self.outputs:
            return replace(self, focus=self.outputs.index(str(output)))
        if re.fullmatch(r"[0-9]+", str(output)) and int(output) < len(self.outputs):
            return replace(self, focus=int(output))
        raise InputError(f"there is no value '{output}': use one of {', '.join(self.outputs)}.")

    def order(self) -> np.ndarray:
        """Group numbers ``(K,)`` from the strongest effect to the weakest; groups without an effect (NaN) come last."""
        strength = self._strength
        ranked: np.ndarray = np.argsort(-np.where(np.isnan(strength), -np.inf, strength), kind="stable")
        return ranked

    @property
    def _strength(self) -> np.ndarray:
        """The key by which groups are ranked ``(K,)``: the effect, or its absolute value."""
        strength: np.ndarray = np.abs(self.scores) if self.signed else self.scores
        return strength

    def sort(self) -> Attribution:
        """The same groups, strongest effect first."""
        return self.of(self.order())

    def of(self, groups: np.ndarray) -> Attribution:
        """The same attribution of some groups alone, by number."""
        return replace(
            self,
            names=tuple(self.names[i] for i in groups),
            matrix=self.matrix[groups],
            errors=self.errors[groups],
            sizes=self.sizes[groups],
            low=self.low[groups],
            high=self.high[groups],
            measured_alone=self.measured_alone[groups],
        )

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The ``count`` groups with the strongest effect, each with its effect."""
        return [(self.names[i], float(self.scores[i])) for i in self.order()[:count]]

    def to_dataframe(self) -> pd.DataFrame:
        """One row per group: name, samples, and the effect on each value, with its standard error where known."""
        import pandas as pd

        columns: dict[str, Any] = {"group": self.names, "samples": self.sizes}
        for column, output in enumerate(self.outputs):
            columns[f"effect on {output}"] = self.matrix[:, column]
            if not np.isnan(self.errors[:, column]).all():
                columns[f"± {output}"] = self.errors[:, column]
            if self.has_intervals:
                columns[f"low {output}"], columns[f"high {output}"] = self.low[:, column], self.high[:, column]
        return pd.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; null where an effect could not be measured or has no interval."""
        stands_out = self.stands_out
        return {
            "objective": self.objective,
            "meaning": self.meaning,
            "sign": SIGN,
            "outputs": list(self.outputs),
            "focus": self.outputs[self.focus],
            "baseline": _plain(self.baseline),
            "intercept": _plain(self.b),
            "models": self.models,
            "beyond": self.beyond,
            "intervals": self.basis,
            "doubt": self.doubt,
            "groups": [
                {
                    "group": self.names[i],
                    "samples": int(self.sizes[i]),
                    "effect": _plain(self.matrix[i]),
                    "standard_error": _plain(self.errors[i]),
                    "low": _plain(self.low[i]),
                    "high": _plain(self.high[i]),
                    "measured": bool(self.measured_alone[i]),
                    "stands_out": bool(stands_out[i]) if self.interval(i) is not None else None,
                }
                for i in self.order()
            ],
        }

    def save(self, path: Path | str) -> None:
        """Write as a table if the path ends in .csv or .parquet, else as JSON; the strongest effect comes first."""
        save(self.sort(), path)

    def plot(self, count: int = 20) -> Figure:
        """Bars of the strongest effects: to the right if removal raises the value, to the left if it lowers it."""
        from ddm.plots import effects

        return effects(self.sort(), count)

    def _repr_html_(self) -> str:
        ranked, shown = self.sort(), min(10, len(self))
        value = f"{units.value_text(self.baseline[self.focus], self.fraction)} with all groups"
        headings = ("group removed", "samples", "effect", *(["90 % interval", ""] if self.has_intervals else []))
        notes = [f"{shown} of {len(self)} groups; {SIGN}.", *self.interval_notes(shown)]
        return (
            html.paragraph(f"Effect of removing each group on: {self.measured} ({value})")
            + (html.paragraph(self.no_stand_out) if self.no_stand_out else "")
            + html.table(headings, [ranked._cells(i) for i in range(shown)])
            + html.paragraph(" ".join([*notes, self.beyond or ""]).rstrip())
        )

    def _cells(self, group: int) -> tuple[str, ...]:
        """Name, size, effect and, where there are intervals, the interval of a group and whether it is noise."""
        cells = (self.names[group], str(self.sizes[group]), units.change_text(self.scores[group], self.fraction))
        return (*cells, self.interval_text(group), self.mark(group)) if self.has_intervals else cells

    def interval_notes(self, count: int) -> list[str]:
        """Sentences below a table of the ``count`` strongest effects: the basis of the intervals, what noise means."""
        if self.basis is None:
            return []
        shown = self.order()[:count]
        known = ["measured: by retraining without the group"] if self.measured_alone[shown].any() else []
        noise = [self.noise] if any(self.mark(i) for i in shown) else []
        return [f"{note[0].upper()}{note[1:]}." for note in (self.basis, *known, *noise)]

    def mark(self, group: int) -> str:
        """Why a group does not stand out, in a few words; empty if it does, or if it was measured."""
        if self.stands_out[group] or self.measured_alone[group]:
            return ""
        return "within noise" if self.doubt is None else "rejected by the audit"

    def effect_text(self, group: int) -> str:
        """The effect of a group with its unit and, where there is one, its interval."""
        effect = units.change_text(self.scores[group], self.fraction)
        if self.interval(group) is None:
            return effect
        known = "measured by retraining" if self.measured_alone[group] else f"90 % interval {self.interval_text(group)}"
        return f"{effect} ({known})"

    def interval_text(self, group: int) -> str:
        """The interval of a group's effect, in the unit of the value; ``measured`` if it is one point, or a dash."""
        ends = self.interval(group)
        if ends is None:
            return "–"
        return "measured" if self.measured_alone[group] else units.interval_text(*ends, self.fraction)

    def __repr__(self) -> str:
        strongest = ", ".join(f"{self.names[i]} {self.effect_text(i)}" for i in self.order()[:3] if self.stands_out[i])
        effects = f"strongest effects: {strongest or 'none stands out'}"
        found = f"Attribution of {self.measured} to {len(self):,} groups; {effects} ({SIGN})"
        return found if self.beyond is None else f"{found}. {self.beyond}"


def attribute(
    models: Models,
    partition: Partition,
    removed: np.ndarray,
    batch: Batch,
    objective: ObjectiveLike,
    beta: Weights = "uniform",
    *,
    chosen: np.ndarray | None = None,
    fast: bool = False,
) -> Attribution:
    """Attribute an objective to the ``chosen`` groups (default: all), by models without ``removed (M, K)`` groups.

    A perturbation never removes groups that are not chosen or whose matching was stopped.
    """
    chosen = np.arange(len(partition)) if chosen is None else chosen
    usable = chosen[models.usable[chosen]]
    weights = designs.weights(removed, beta)
    removable = np.zeros(len(partition), bool)
    removable[usable] = True
    removed = removed & removable
    nonempty = removed.any(1)
    if not nonempty.any():
        raise InputError(
            "none of these groups can be removed: ask about others, or fit with other settings if matching was stopped."
        )
    removed, weights = removed[nonempty], weights[nonempty]
    x, labels = batch
    outputs = models.stacks(removed, x, fast=fast)
    resolved = resolve(objective, models.target.task)
    if not isinstance(models, RefinedModels) or (removed.sum(1) != 1).any():
        return fit_attribution(resolved, outputs, labels, partition, removed, weights, usable, chosen)
    intervals = Intervals(models, removed, resolved, batch, fast)
    found = fit_attribution(resolved, intervals.watch(outputs), labels, partition, removed, weights, usable, chosen)
    ends = np.full((2, len(partition), found.matrix.shape[1]), np.nan)
    ends[:, removed.argmax(1)] = intervals.of_effects()
    known = np.zeros(len(partition), dtype=bool)
    known[removed.argmax(1)] = models.variances(removed) == 0
    return replace(
        found, low=ends[0, chosen], high=ends[1, chosen], basis=intervals.basis, measured_alone=known[chosen]
    )


def fit_attribution(
    objective: Objective,
    outputs: Iterable[Tensor],
    labels: Tensor | None,
    partition: Partition,
    removed: np.ndarray,
    weights: np.ndarray,
    usable: np.ndarray,
    chosen: np.ndarray,
) -> Attribution:
    """Fit W and b of an objective to the outputs of models.

    outputs:          stacks of logits ``(m, n, L)``: first of the model with all groups, then of the M perturbations
    labels:           labels of the n samples
    removed, weights: the perturbations ``(M, K)`` and their β ``(M,)``
    chosen:           numbers of the groups to report
    usable:           the chosen groups that can be removed; the effects of the others are NaN
    """
    first = next(rest := iter(outputs))
    baseline = first[0]
    values = _evaluate(objective, chain([first], rest), baseline, objective.labels_on(labels, baseline.device))
    present = np.vstack([np.ones((1, len(usable))), ~removed[:, usable]])
    fit = least_squares(present, values, np.concatenate([[1.0], weights]))
    matrix, errors = np.full((2, len(partition), values.shape[1]), np.nan)
    matrix[usable], errors[usable] = 0.0 - fit.W, fit.errors  # −W would turn 0 into −0
    return Attribution(
        names=tuple(partition.names[k] for k in chosen),
        matrix=matrix[chosen],
        errors=errors[chosen],
        b=fit.b,
        baseline=values[0],
        outputs=objective.output_names(partition.classes, values.shape[1]),
        objective=objective.name,
        meaning=objective.meaning,
        signed=objective.signed,
        focus=int(objective.link(baseline).mean(0).argmax()) if objective.per_class else 0,
        sizes=partition.sizes[chosen],
        models=len(removed),
        fraction=objective.fraction,
        one_way=objective.one_way,
        beyond=beyond_reach(partition, removed),
    )


def _evaluate(objective: Objective, outputs: Iterable[Tensor], baseline: Tensor, labels: Tensor) -> np.ndarray:
    """Values ``(M, O)`` of the objective for the outputs of M models."""
    try:
        values = objective.values(outputs, baseline, labels)
    except (TypeError, RuntimeError, IndexError) as error:
        raise InputError(
            f"the objective '{objective.name}' must take (outputs, baseline outputs, labels) and return one or more "
            f"numbers; it failed with: {error}"
        ) from None
    array: np.ndarray = values.cpu().numpy()
    if not np.isfinite(array).all():
        raise InputError(f"the objective '{objective.name}' returned NaN or infinite values.")
    return array


@dataclass(frozen=True)
class LinearFit:
    """W ``(K, O)`` and b ``(O,)`` of y(p) = W·p + b, with standard errors of W (NaN if there are no residuals)."""

    W: np.ndarray
    b: np.ndarray
    errors: np.ndarray


def least_squares(present: np.ndarray, values: np.ndarray, beta: np.ndarray) -> LinearFit:
    """min over W, b of Σ_p β_p ‖y(p) − W·p − b‖², for p ``(M, K)``, y(p) ``(M, O)`` and β ``(M,)``.

    Row 0 is the target itself, p = 1.
    """
    if _leaves_one_out(present, beta):
        W = np.empty((present.shape[1], values.shape[1]))
        W[np.argmin(present[1:], axis=1)] = values[0] - values[1:]  # the exact solution, without rounding
        return LinearFit(W, values[0] - W.sum(0), np.full_like(W, np.nan))
    root = np.sqrt(beta)[:, None]
    design = root * np.column_stack([present, np.ones(len(present))])
    count, unknowns = np.count_nonzero(beta), design.shape[1]
    if np.linalg.matrix_rank(design) < unknowns:
        raise InputError(
            f"{count - 1} perturbations cannot tell {unknowns - 1} groups apart: use leave-one-out, or more "
            "perturbations."
        )
    solution, *_ = np.linalg.lstsq(design, root * values, rcond=None)
    errors = np.full_like(solution, np.nan)
    if count > unknowns:
        residuals = root * values - design @ solution
        variance = np.square(residuals).sum(0) / (count - unknowns)
        errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design))[:, None] * variance)
    return LinearFit(solution[:-1], solution[-1], errors[:-1])


def _leaves_one_out(present: np.ndarray, beta: np.ndarray) -> bool:
    """True if the design removes each group once, alone."""
    removed = 1 - present[1:]
    return bool(
        len(removed) == present.shape[1]
        and (removed.sum(0) == 1).all()
        and (removed.sum(1) == 1).all()
        and (beta > 0).all()
    )


def _plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
