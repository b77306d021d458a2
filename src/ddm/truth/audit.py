"""The audit: how far a datamodel can be trusted, measured by really retraining without a few groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.compute.validation import are_unique_names, check_fields, check_upper_bounds
from ddm.counterfactual import designs
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.plots import html
from ddm.truth.effects import EffectQuery, Effects, measure_effects, predict_effects
from ddm.truth.figures import FIGURES, Figure, estimate_figures, label_of, noise_ceilings, score_figures
from ddm.truth.retraining import Retraining, group_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SAME, OTHER = "same run", "other run"
"""Truth from the target's own batch order, and from others."""

KEYS = ("value", "low", "high", "retrain", "ceiling")
"""What an audit says of each figure."""

USUAL = 10
"""Groups that an audit retrains without by default, or all where there are fewer."""

_NOTHING = np.array([], dtype=np.int64)


RUNS = {"same run": "the target's batch order", "other run": "other batch orders"}
"""Which retrainings a figure is measured against: the two are different questions and are never mixed."""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    figures:   by run (same run, other run) and figure: value, low and high (95 % bootstrap), retrain (what another
               retraining scores), ceiling (what the noise-free effect would score; rank figures only). An audit from
               a file may lack figures that ``ddm.figures`` has, and may have others.
    groups:    names of the groups that were retrained without
    unions:    random unions of half of the groups that were retrained without
    orders:    batch orders of each
    samples:   test samples, and validation samples, that were asked about
    trainings: retrainings it took, and ``seconds`` each on one thread
    """

    figures: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    groups: tuple[str, ...]
    unions: int
    orders: int
    samples: tuple[int, int]
    trainings: int
    seconds: float

    @property
    def sentence(self) -> str:
        """What this datamodel can be trusted for, and what not."""
        return verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, the sentence included."""
        return asdict(self) | {"sentence": self.sentence}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Audit:
        """From what ``to_dict`` gave."""
        try:
            known = {name: values[name] for name in cls.__dataclass_fields__}
            audit = cls(**known | {"groups": tuple(known["groups"]), "samples": tuple(known["samples"])})
            _check(audit)
            return audit
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(
                f"this is not an audit ({str(error).rstrip('.')}): make it again with ddm audit."
            ) from None

    def plot(self) -> Picture:
        """Each figure with its interval, beside another retraining and the ceiling."""
        from ddm import plots

        return plots.audit(self, {name: label_of(name) for name in self.figures["same run"]})

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
    """Refuse fields that do not hold what they should, for audits that come from files."""
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
    verdict(audit)


def audit(
    models: Counterfactuals,
    partition: Partition,
    exact: Retraining,
    test: Samples,
    validation: Samples,
    *,
    groups: int = USUAL,
    unions: int | None = None,
    orders: int = 2,
    seed: int = 0,
) -> Audit:
    """Retrain without ``groups`` single groups and ``unions`` random unions, with ``orders`` batch orders each."""
    if min(groups, len(partition), orders) < 2 or (unions is not None and unions < 0):
        raise InputError("an audit needs at least 2 groups to retrain without and 2 batch orders (--retrain, --seeds).")
    if groups > max(len(partition), USUAL):
        raise InputError(f"there are {len(partition)} groups: retrain without at most so many (--retrain).")
    count = groups if unions is None else unions
    check_upper_bounds(unions=count, seeds=orders, retrainings=(1 + min(groups, len(partition)) + count) * orders)
    together = designs.random(len(partition), max(1, count), seed=seed)[:count]
    everything = EffectQuery(test, validation, np.arange(len(partition)), together)
    found = predict_effects(models, everything)
    chosen = draw_stratified(found.shift.mean(1), min(groups, len(partition)), seed)
    asked = EffectQuery(test, validation, chosen, together)
    removals = [_NOTHING, *group_rows(partition, asked.removed)]
    exact.run(removals, range(orders))
    true = [measure_effects(exact, partition, asked, order) for order in range(orders)]
    return Audit(
        figures=compare_effects(found.of(chosen), true, seed),
        groups=tuple(partition.names[k] for k in chosen),
        unions=len(together),
        orders=orders,
        samples=(len(test), len(validation)),
        trainings=len({rows.tobytes() for rows in removals}) * orders,  # a union may be a single group
        seconds=exact.mean_seconds(removals),
    )


def compare_effects(
    found: Effects, true: list[Effects], seed: int = 0
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Figures of predicted effects against each kind of run, beside another retraining's and the ceiling.

    true: from the target's own batch order first, then from others
    """
    same, *others = true
    ceiling = noise_ceilings(true)
    table = {
        SAME: _row(found, [same], [others[0]] if others else [], ceiling, seed),
    }
    if others:
        witnesses = [others[i - 1] if len(others) > 1 else same for i in range(len(others))]
        table[OTHER] = _row(found, others, witnesses, ceiling, seed)
    return table


def _row(
    found: Effects, true: list[Effects], witnesses: list[Effects], ceiling: Mapping[str, float], seed: int
) -> dict[str, dict[str, float | None]]:
    """Figures against each of some retrainings, averaged; ``witnesses`` are the other retrainings to compare with."""
    mine = [estimate_figures(found, one, seed=seed) for one in true]
    theirs = [score_figures(witness, one) for witness, one in zip(witnesses, true, strict=False)]
    return {
        name: {
            "value": _mean([one[name].value for one in mine]),
            "low": _mean([one[name].low for one in mine]),
            "high": _mean([one[name].high for one in mine]),
            "retrain": _mean([one[name] for one in theirs]),
            "ceiling": _number(ceiling.get(name, np.nan)),
        }
        for name in FIGURES
    }


def draw_stratified(effects: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """``count`` of the groups, one at random from each of as many ranges of their predicted effects ``(K,)``."""
    generator = np.random.default_rng(seed)
    strata = np.array_split(np.argsort(effects, kind="stable"), count)
    return np.sort([int(generator.choice(stratum)) for stratum in strata])


def verdict(audit: Audit) -> str:
    """One sentence: what the audited datamodel can be trusted for, and what not."""
    measured = {
        figure: audit.figures[SAME][name]
        for name, figure in FIGURES.items()
        if name in audit.figures[SAME] and audit.figures[SAME][name]["value"] is not None
    }
    judged = {figure: _judged(figure, found) for figure, found in measured.items() if figure.use is not None}
    parts = [] if judged else ["nothing could be measured, so retrain without more groups"]
    for wanted, opening in _OPENINGS.items():
        alike = [figure for figure, judgement in judged.items() if judgement == wanted]
        uses = [f"{figure.use} ({_beside(figure, measured[figure])})" for figure in alike]
        if uses:
            parts.append(f"{opening} {_listed(uses)}")
    parts += [_warning(figure, found) for figure, found in measured.items() if _unusual(figure, found)]
    sentence = "; ".join(parts)
    return sentence[:1].upper() + sentence[1:] + "."


_OPENINGS = {
    "yes": "trust it to",
    "no": "do not trust it to",
    "poor": "it is as good as another retraining, which is poor here, so fewer and larger groups are needed to",
    "unsure": "more retrainings are needed to say whether it can",
    "noise": "two retrainings do not agree with each other here, so fewer and larger groups are needed to",
}
"""How the sentence begins for the uses of each judgement."""

_NOISE = 0.1
"""Where another retraining scores less than this, the truth is mostly noise and no datamodel can be judged by it."""


def _judged(figure: Figure, found: Mapping[str, float | None]) -> str:
    """The judgement of a figure.

    yes:    the whole interval lies above chance, and the value reaches the bar
    poor:   the whole interval lies above chance, and the value is that of another retraining, but both are below the
            figure's floor
    noise:  another retraining scores next to nothing
    no, unsure: the value is below the bar, and the interval excludes the bar or does not
    """
    value, low, high, retrain, ceiling = (found[key] for key in KEYS)
    assert value is not None
    if retrain is not None and retrain < _NOISE:
        return "noise"
    reference = ceiling if ceiling is not None else retrain
    enough = figure.share * max(reference or 0.0, 0.0)
    if retrain is not None:
        enough = min(enough, retrain)
    bar = max(figure.floor, enough)
    above_chance = low is not None and low > 0
    if above_chance and value >= bar:
        return "yes"
    if above_chance and value >= enough and retrain is not None and retrain < figure.floor:
        return "poor"
    return "unsure" if low is None or high is None or high >= bar else "no"


def _unusual(figure: Figure, found: Mapping[str, float | None]) -> bool:
    low, high = figure.usual
    value = found["value"]
    return value is not None and not low <= value <= high


def _warning(figure: Figure, found: Mapping[str, float | None]) -> str:
    return figure.warning.format(value=found["value"])


def _beside(figure: Figure, found: Mapping[str, float | None]) -> str:
    text = f"{figure.label} {found['value']:.2f}"
    if found["retrain"] is not None:
        text += f", another retraining {found['retrain']:.2f}"
    if found["ceiling"] is not None:
        text += f", ceiling {found['ceiling']:.2f}"
    return text


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _mean(values: list[float]) -> float | None:
    return _number(float(np.mean(values))) if values else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def trust_line(verdict: str | None) -> str:
    """One line below every answer: how far to trust it, from the verdict of an audit, or that there was none."""
    if verdict is None:
        return "Not audited: ddm audit RUN says how far this can be trusted."
    return f"Audit: {verdict}"
