"""The audit: how far to trust a datamodel, measured by retraining without a few groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.compute.validation import are_unique_names, check_fields, check_upper_bounds
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.plots import html
from ddm.truth.effects import EffectQuery, Effects, measure_effects, predict_effects
from ddm.truth.evidence import Removal
from ddm.truth.figures import FIGURES, estimate_figures, label_of, noise_ceilings, probability_error, score_figures
from ddm.truth.retraining import NO_ROWS, Retraining, group_rows
from ddm.truth.verdict import KEYS, NOISE, REJECTED, judge_all, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAME, OTHER = "same run", "other run"
"""Retraining with the target's own batch order, and with other orders."""

DEFAULT_GROUPS = 10
"""Groups that an audit retrains without by default; all groups if there are fewer."""

RUNS = {SAME: "the target's batch order", OTHER: "other batch orders"}
"""The retrainings that a figure is measured against. They answer different questions and are never mixed."""

FigureRows = dict[str, dict[str, float | None]]
"""The numbers of each figure, by the name of the figure."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    figures:   by run (same run, other run) and name of the figure: value, low and high (95 % bootstrap interval),
               retrain (score of another retraining), ceiling (score of the noise-free effect; rank figures only). An
               audit from a file may lack figures of ``ddm.truth.figures``, and may have others.
    groups:    names of the groups that were removed one at a time
    unions:    number of random unions of half of the groups that were removed together
    orders:    batch orders of each retraining
    samples:   number of test samples and of validation samples
    trainings: number of retrainings
    seconds:   mean duration of a retraining on one thread
    error:     90 % of the changes of the correct class's probability are predicted within this; None if not measured,
               and where samples have no class
    """

    figures: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    groups: tuple[str, ...]
    unions: int
    orders: int
    samples: tuple[int, int]
    trainings: int
    seconds: float
    error: float | None = None

    @property
    def sentence(self) -> str:
        """The verdict: the uses for which to trust this datamodel, and those for which not to."""
        return verdict(self.figures[SAME], self.error)

    def doubt(self, figure: str) -> str | None:
        """A sentence that says why answers that rest on a figure are not to be trusted; None if they are."""
        judgement = judge_all(self.figures[SAME]).get(figure)
        if judgement not in REJECTED:
            return None
        why = "retrainings disagree about it" if judgement == NOISE else "its predictions disagree with retraining"
        return f"The audit rejects it: {(FIGURES[figure].use or '').lower()}? No, {why}."

    def to_dict(self) -> dict[str, Any]:
        """All fields and the sentence as JSON values."""
        return asdict(self) | {"sentence": self.sentence}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Audit:
        """Read an audit that ``to_dict`` wrote."""
        try:
            known = {name: values[name] for name in cls.__dataclass_fields__ if name != "error" or name in values}
            audit = cls(**known | {"groups": tuple(known["groups"]), "samples": tuple(known["samples"])})
            _check(audit)
            return audit
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"this is not an audit ({str(error).rstrip('.')}): run ddm audit again.") from None

    def plot(self) -> Figure:
        """Each figure with its interval, the score of another retraining, and the ceiling."""
        from ddm import plots

        return plots.audit(self, {name: label_of(name) for name in self.figures[SAME]})

    def _repr_html_(self) -> str:
        rows = []
        for name, figure in self.figures[SAME].items():
            value, low, high, retrain, ceiling = (_shown(figure[key]) for key in KEYS)
            rows.append((label_of(name), value, f"{low} to {high}", retrain, ceiling))
        return (
            html.paragraph(self.sentence)
            + html.table(("figure", "datamodel", "95 % interval", "another retraining", "ceiling"), rows)
            + html.paragraph(f"{self.trainings} retrainings of {self.seconds:.1f} s.")
        )

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"Audit: {self.sentence}"


def _check(audit: Audit) -> None:
    """Refuse an audit from a file whose fields have wrong types or values."""
    check_fields(audit)
    tests, validation = audit.samples
    if {type(name) for name in audit.groups} - {str} or not isinstance(tests, int) or not isinstance(validation, int):
        raise ValueError("groups must be names and samples two numbers")
    for run, figures in audit.figures.items():
        if run not in (SAME, OTHER) or not figures:
            raise ValueError(f"'{run}' must be {SAME} or {OTHER}, with figures")
        if not are_unique_names(list(figures)) or not all(name.isprintable() for name in figures):
            raise ValueError("names of figures must be printable")
        for figure in figures.values():
            numbers = [figure[key] for key in KEYS]
            if not all(number is None or math.isfinite(number) for number in numbers):
                raise ValueError("figures must be finite")
    if audit.error is not None and not 0 <= audit.error <= 1:
        raise ValueError("the error must be a fraction")
    _ = audit.sentence


def audit(
    models: Models,
    partition: Partition,
    retraining: Retraining,
    test: Samples,
    validation: Samples,
    *,
    groups: int = DEFAULT_GROUPS,
    unions: int | None = None,
    orders: int = 2,
    seed: int = 0,
    refined: Callable[[Sequence[Removal]], Models] | None = None,
) -> Audit:
    """Retrain without ``groups`` single groups and ``unions`` random unions, with ``orders`` batch orders each.

    Groups are drawn from all ranges of predicted effects, so that an audit does not depend on a few strong ones. Each
    retraining is predicted before it is used: by models that know nothing of it.

    models:  the unrefined models without some groups
    refined: the models to audit, as they would be if some retrainings had not been made; by default ``models``
    """
    if min(groups, len(partition), orders) < 2 or (unions is not None and unions < 0):
        raise InputError("an audit needs at least 2 groups to retrain without and 2 batch orders (--retrain, --seeds).")
    if groups > max(len(partition), DEFAULT_GROUPS):
        raise InputError(f"there are only {len(partition)} groups: retrain without at most that many (--retrain).")
    count = groups if unions is None else unions
    check_upper_bounds(unions=count, seeds=orders, retrainings=(1 + min(groups, len(partition)) + count) * orders)
    together = designs.random(len(partition), max(1, count), seed=seed)[:count]
    predicted = predict_effects(models, EffectQuery(test, validation, np.arange(len(partition)), together))
    chosen = draw_stratified(predicted.shift.mean(1), min(groups, len(partition)), seed)
    query, predicted = EffectQuery(test, validation, chosen, together), predicted.of(chosen)
    if refined is not None:
        keys = [(row.tobytes(), order) for row in query.removed for order in range(orders)]
        predicted = predict_effects(refined(keys), query)
    removals = [NO_ROWS, *group_rows(partition, query.removed)]
    retraining.run(removals, range(orders))
    true = [measure_effects(retraining, partition, query, order) for order in range(orders)]
    return Audit(
        figures=compare_effects(predicted, true, seed),
        error=probability_error(predicted, true[0]) if retraining.target.task.has_classes else None,
        groups=tuple(partition.names[k] for k in chosen),
        unions=len(together),
        orders=orders,
        samples=(len(test), len(validation)),
        trainings=len({rows.tobytes() for rows in removals}) * orders,  # a union may be a single group
        seconds=retraining.mean_seconds(removals),
    )


def compare_effects(predicted: Effects, true: list[Effects], seed: int = 0) -> dict[str, FigureRows]:
    """All figures of predicted effects, by run; see ``Audit``.

    true: effects of retraining, with the target's own batch order first, then with other orders
    """
    same, *others = true
    ceilings = noise_ceilings(true)
    table = {SAME: _average_figures(predicted, [same], others[:1], ceilings, seed)}
    if others:
        rivals = [others[i - 1] if len(others) > 1 else same for i in range(len(others))]
        table[OTHER] = _average_figures(predicted, others, rivals, ceilings, seed)
    return table


def _average_figures(
    predicted: Effects, true: list[Effects], rivals: list[Effects], ceilings: Mapping[str, float], seed: int
) -> FigureRows:
    """Figures against each of the ``true`` effects, averaged; ``rivals`` are the other retrainings to compare with."""
    estimates = [estimate_figures(predicted, one, seed=seed) for one in true]
    rival_scores = [score_figures(rival, one) for rival, one in zip(rivals, true, strict=False)]
    return {
        name: {
            "value": _mean([estimate[name].value for estimate in estimates]),
            "low": _mean([estimate[name].low for estimate in estimates]),
            "high": _mean([estimate[name].high for estimate in estimates]),
            "retrain": _mean([scores[name] for scores in rival_scores]),
            "ceiling": _finite(ceilings.get(name, np.nan)),
        }
        for name in FIGURES
    }


def draw_stratified(effects: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """``count`` group numbers, one at random from each of ``count`` ranges of the predicted effects ``(K,)``."""
    generator = np.random.default_rng(seed)
    strata = np.array_split(np.argsort(effects, kind="stable"), count)
    return np.sort([int(generator.choice(stratum)) for stratum in strata])


def _mean(values: list[float]) -> float | None:
    return _finite(float(np.mean(values))) if values else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def trust_line(verdict: str | None) -> str:
    """The line below every answer: the verdict of the audit, or that there was no audit."""
    if verdict is None:
        return "Not audited: ddm audit RUN says how far this can be trusted."
    return f"Audit: {verdict}"
