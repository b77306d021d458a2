"""``evidence``: what retrainings make of a datamodel, by their number and design, on the stored problems.

Every figure comes from stored retrainings, so nothing is retrained. Retrainings that are evidence are never scored as
truth of their own removal, except where single groups are among them: "groups never retrained alone" leaves these out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddm.answers.intervals import LEVEL
from ddm.bench.evidence_case import OF_ALL, OF_SAMPLES, Case
from ddm.bench.evidence_files import StoredEvidence, evidence_problem
from ddm.bench.output import Report, Row, Table
from ddm.bench.problems import PROBLEMS
from ddm.bench.refined_changes import bootstrap_mean
from ddm.bench.truth_files import truth_file
from ddm.compute.engine import Engine
from ddm.compute.progress import bar
from ddm.errors import InputError
from ddm.plots import ACCENT, NEUTRAL
from ddm.truth.effects import log_odds
from ddm.truth.figures import noise_ceilings, score_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DRAWS = 2
"""Each design is scored this many times, with other unions first; figures are means."""

_PRIORS = {"response": "responses", "none": "no prior", "trak": "TRAK", "ekfac": "EK-FAC"}
"""The priors: methods that predict effects before any retraining."""

_KINDS = {"singles": "one group, never retrained alone", "pairs": "two groups", "unions": "a tenth of the groups"}
"""Removals whose intervals are checked."""

_OTHER_RUN = {
    "mixture, target's batch order": (NEUTRAL, "-"),
    "singles, target's batch order": (NEUTRAL, "--"),
    "mixture, other batch orders": (ACCENT, "-"),
    "singles, other batch orders": (ACCENT, "--"),
}
"""Evidence for other runs, with colour and style of its line in the picture."""

_UNIONS = ("unrefined", "mixture", "unions", "larger unions")
"""Designs that say something about groups never retrained alone."""

_MARKERS = {"mixture": "o", "singles": "s", "unions": "^", "larger unions": "v", "unions, no prior": "x"}
"""The designs, with a marker for each in the picture."""


def run_stored(
    names: Sequence[str], truths: Path, evidence: Path, root: str | None, work: Path, engine: Engine = None
) -> Report:
    """Score stored problems; without names, all that have a file in ``evidence``."""
    cases = {name: _case(name, truths, evidence, root, work, engine) for name in names or stored_names(evidence)}
    tables: dict[str, list[Row]] = {"summary": [], "same run": [], "other run": [], "priors": [], "intervals": []}
    with bar("problems", len(cases)) as advance:
        for name, case in cases.items():
            for table, rows in _measure(case, name).items():
                tables[table] += rows
            advance(1)
    return _report(tables)


def stored_names(evidence: Path) -> list[str]:
    """The problems that have a file in a folder."""
    names = [name for name in PROBLEMS if truth_file(evidence, name).exists()]
    if not names:
        raise InputError(
            f"there is no stored evidence in '{evidence}': make it with ddm bench truths --evidence, or give its "
            "folder as --evidence-files."
        )
    return names


def _case(name: str, truths: Path, evidence: Path, root: str | None, work: Path, engine: Engine) -> Case:
    path = truth_file(evidence, name)
    if not path.exists():
        raise InputError(f"there is no stored evidence '{path}': make it with ddm bench truths --evidence.")
    return Case(evidence_problem(name, root, truths, work, engine), StoredEvidence.load(path))


# --- figures ---


def _measure(case: Case, name: str) -> dict[str, list[Row]]:
    """The rows of a problem in each table."""
    key: Row = {"method": name, "title": PROBLEMS[name][0]}
    found = {
        "same run": [{**key, **row} for row in _same_run(case)],
        "other run": [{**key, **row} for row in _other_run(case)],
        "priors": [{**key, **row} for row in _priors(case)],
        "intervals": [{**key, **row} for row in _intervals(case)],
    }
    return {"summary": [{**key, **_summary(case, found)}], **found}


def _same_run(case: Case) -> Iterator[Row]:
    """Figures by number and design of retrainings, in the target's batch order."""
    nothing = torch.zeros_like(case.prior_of_singles)
    yield _mean_row(0, "unrefined", [case.same_run(case.mixture(0))])
    for number in case.budgets[1:]:
        drawn = [case.designs(number, draw) for draw in range(_DRAWS)]
        for design in drawn[0]:
            yield _mean_row(number, design, [case.same_run(designs[design]) for designs in drawn])
        scores = [case.same_run(designs["unions"], nothing) for designs in drawn]
        yield _mean_row(number, "unions, no prior", scores)


def _other_run(case: Case) -> Iterator[Row]:
    """Figures in a batch order that no evidence has, by evidence of the target's own order and of several others."""
    for number in case.budgets:
        found = [
            [case.mixture(number, draw) for draw in range(_DRAWS if number else 1)],
            [case.designs(number)["singles"]],
            [case.elsewhere(number)],
            [case.elsewhere(number, alone=number)],
        ]
        for design, drawn in zip(_OTHER_RUN, found, strict=True):
            yield _mean_row(number, design, [case.other_run(trials) for trials in drawn])


def _mean_row(number: int, design: str, scores: Sequence[Mapping[str, float]]) -> Row:
    return {"R": number, "design": design} | {name: float(np.mean([one[name] for one in scores])) for name in scores[0]}


def _priors(case: Case) -> Iterator[Row]:
    """``rho`` with each prior, for the same retrainings: the mixture."""
    y, base = case.problem.test.labels, case.base[case.test]
    mine = (log_odds(base + case.prior_of_singles[:, case.test], y) - log_odds(base, y)).numpy()
    found = {"response": mine, "none": np.zeros_like(mine)}
    for method, outcome in case.problem.outcomes(["trak", "ekfac"]).items():
        if outcome.effects is not None:
            found[method] = outcome.effects.margin
    for number in case.budgets:
        for prior, margin in found.items():
            scores = [case.log_odds_only(case.mixture(number, draw), margin) for draw in range(_DRAWS if number else 1)]
            yield _mean_row(number, "mixture", scores) | {"prior": prior}


def _intervals(case: Case) -> Iterator[Row]:
    """How often intervals hold the truth, by number of retrainings, kind of removal and value."""
    for number in case.budgets:
        for kind, hits in case.hits(case.mixture(number)).items() if number else ():
            row: Row = {"R": number, "kind": kind, "asked": len(hits["loss"])}
            for name, inside in hits.items():
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), bootstrap_mean(inside), strict=True))
            yield row


def _summary(case: Case, found: Mapping[str, Sequence[Row]]) -> Row:
    """The summary table: the figures at R = 0.4 K, one row for each problem."""
    enough, designs = case.enough, {row["design"]: row for row in found["same run"] if row["R"] == case.enough}
    start, mixed = found["same run"][0], designs["mixture"]
    many = [row for row in found["same run"] if row["design"] == "mixture" and row["R"] >= 10]
    before, after = case.question_seconds()
    return {
        "groups": case.count,
        "R": enough,
        "ceiling_rho": noise_ceilings(case.true)["rho"],
        "retrain_rho": score_figures(case.true[1], case.true[0])["rho"],
        "retrain_other_rho": score_figures(case.true[0], case.true[1])["rho"],
        "unrefined_oracle_fraction": start["oracle_fraction"],
        "unrefined_rho": start["rho"],
        "new_unrefined_rho": mixed["new_unrefined_rho"],
        "new_rho": mixed["new_rho"],
        **{f"{name}_{figure}": row[figure] for name, row in designs.items() for figure in ("oracle_fraction", "rho")},
        **_summary_of_other_runs(found["other run"]),
        "worst_lead": _worst_lead(found["priors"]),
        **{f"{key}_low": min(row[key] for row in many) for key in ("slope", "new_slope")},
        **{f"{key}_high": max(row[key] for row in many) for key in ("slope", "new_slope")},
        **_summary_of_intervals(found["intervals"], enough),
        "question_before": 1000 * before,
        "question_after": 1000 * after,
        "question_ratio": after / before,
    }


def _summary_of_other_runs(rows: Sequence[Row]) -> Row:
    curves = {design: [row["rho"] for row in rows if row["design"] == design] for design in _OTHER_RUN}
    start = rows[0]["rho"]
    return {
        "unrefined_other_rho": start,
        **{f"{design}, rho": curve[-1] for design, curve in curves.items()},
        **{f"{design}, smallest gain": min(curve[1:]) - start for design, curve in curves.items()},
    }


def _worst_lead(rows: Sequence[Row]) -> float:
    """The smallest lead of ``rho`` with the datamodel's prior over any other prior, at any number of retrainings."""
    mine = {row["R"]: row["rho"] for row in rows if row["prior"] == "response"}
    return float(min(mine[row["R"]] - row["rho"] for row in rows if row["prior"] != "response"))


def _summary_of_intervals(rows: Sequence[Row], enough: int) -> Row:
    chosen = {row["kind"]: row for row in rows if row["R"] == enough}
    return {
        f"{kind}_{name}": f"{row[name]:.0%} ({row[f'{name}_low']:.0%} to {row[f'{name}_high']:.0%})"
        for kind, row in chosen.items()
        for name in (*OF_SAMPLES, *OF_ALL)
    }


# --- the page ---


def _report(tables: Mapping[str, Sequence[Row]]) -> Report:
    values = {name: name for name in (*OF_SAMPLES, *OF_ALL)}
    figures = {"oracle_fraction": "oracle_fraction", "rho": "rho", "slope": "slope"}
    return Report(
        "evidence",
        "Evidence: how retrainings improve a datamodel, on the stored problems",
        tables["summary"],
        {
            "title": "problem",
            "groups": "K",
            "R": "R",
            "ceiling_rho": "ceiling of rho",
            "new_unrefined_rho": "rho of groups never retrained alone, unrefined",
            "new_rho": "refined",
            **{f"{name}_oracle_fraction": f"oracle_fraction, {name}" for name in ("unrefined", *list(_MARKERS)[:3])},
            **{f"{name}_rho": f"rho, {name}" for name in ("unrefined", *list(_MARKERS)[:3])},
            "slope_low": "slope, lowest at R ≥ 10",
            "slope_high": "highest",
            "new_slope_low": "slope of groups never retrained alone, lowest at R ≥ 10",
            "new_slope_high": "highest",
            "worst_lead": "smallest lead of rho over other priors at any R",
            "question_before": "question before, ms",
            "question_ratio": "after, times as long",
        },
        tables=[
            Table(
                "other runs",
                "Other runs: a batch order that no evidence has",
                tables["summary"],
                {
                    "title": "problem",
                    "unrefined_other_rho": "rho, unrefined",
                    **{f"{design}, rho": f"rho at R = K, {design}" for design in _OTHER_RUN},
                    "retrain_other_rho": "another retraining of all groups",
                    **{
                        f"{design}, smallest gain": f"smallest gain at any R, {design}"
                        for design in _OTHER_RUN
                        if design.startswith("mixture")
                    },
                },
            ),
            Table(
                "coverage",
                f"How often {100 * LEVEL:.0f} % intervals hold the truth at R = 0.4 K",
                tables["summary"],
                {"title": "problem"}
                | {f"{kind}_{name}": f"{name}, {_KINDS[kind]}" for kind in _KINDS for name in values},
            ),
            Table(
                "same run",
                "Same run, by number and design of retrainings",
                tables["same run"],
                {
                    "method": "problem",
                    "R": "R",
                    "design": "design",
                    **figures,
                    "new_unrefined_rho": "rho of groups never retrained alone, unrefined",
                    "new_rho": "refined",
                    "new_slope": "slope of groups never retrained alone",
                },
            ),
            Table(
                "other run",
                "Other run, by number of retrainings and their batch orders",
                tables["other run"],
                {"method": "problem", "R": "R", "design": "evidence in", **figures},
            ),
            Table("priors", "Priors, by number of retrainings", _by_prior(tables["priors"]), _prior_columns()),
            Table(
                "intervals",
                f"How often {100 * LEVEL:.0f} % intervals hold the truth, by number of retrainings",
                tables["intervals"],
                {"method": "problem", "R": "R", "kind": "removal", "asked": "retrainings asked about", **values},
            ),
        ],
        notes=_notes(),
        figure=_figure(tables),
    )


def _by_prior(rows: Sequence[Row]) -> list[Row]:
    """One row for each problem and number of retrainings, with a column for each prior."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        merged = found.setdefault((row["method"], row["R"]), {name: row[name] for name in ("method", "title", "R")})
        merged |= {f"{row['prior']}_rho": row["rho"], f"{row['prior']}_new_rho": row["new_rho"]}
    return list(found.values())


def _prior_columns() -> dict[str, str]:
    every = {f"{prior}_rho": f"rho, {title}" for prior, title in _PRIORS.items()}
    new = {f"{prior}_new_rho": f"rho of groups never retrained alone, {title}" for prior, title in _PRIORS.items()}
    return {"method": "problem", "R": "R", **every, **new}


def _notes() -> list[str]:
    return [
        "R is the number of retrainings that are evidence, so it is also the cost in trainings after the fit. The "
        "truth is retraining without each single group: in the target's batch order (same run) or in another one "
        "that no evidence has (other run).",
        "Mixture: a third of the retrainings leave out one group, those of the largest predicted importance, and the "
        "others a tenth of the groups at a time. Larger unions leave out a sixth. A group that was retrained alone has "
        "its true effect, so figures of all groups rise with the share of such groups; figures of groups never "
        f"retrained alone do not. Each figure is the mean over {_DRAWS} draws of the unions. In other batch orders, "
        "the mixture is a third of single groups and two thirds of unions of a sixth.",
        "The posterior's parameters are estimated on validation samples, figures on test samples. No prior: the "
        "retrainings alone, as datamodels are estimated. Priors are compared on the log-odds of the correct class, the "
        "only value that TRAK and EK-FAC predict, with the same retrainings for all; their scores are multiplied by "
        "the number that fits these retrainings best.",
        "Intervals are of the log-odds and Dist_1 of each test sample, and of the loss and the accuracy of all "
        "validation samples, for retrainings that are no evidence. In parentheses, a 95 % bootstrap interval: it draws "
        "retrainings, not samples. Loss and accuracy are one value for a retraining, and the pairs are few, so their "
        "coverage is uncertain.",
        "A question asks for the effect of each group on one test sample. After refining with K retrainings it also "
        "gives an interval. CPU time on one core.",
    ]


def _figure(tables: Mapping[str, Sequence[Row]]) -> Figure:
    """Curves over the number of retrainings: a column of panels for each problem."""
    from matplotlib.figure import Figure

    names = [row["method"] for row in tables["summary"]]
    figure = Figure(figsize=(1.5 + 2.5 * len(names), 7.6), layout="constrained")
    panels = figure.subplots(3, len(names), squeeze=False, sharey="row")
    for name, column, summary in zip(names, panels.T, tables["summary"], strict=True):
        same, other = ([row for row in tables[table] if row["method"] == name] for table in ("same run", "other run"))
        column[0].set_title(name)
        _draw(column[0], same, "rho")
        _draw(column[1], [row for row in same if row["design"] in _UNIONS], "new_rho", "new_unrefined_rho")
        _draw_other(column[2], other, summary)
        column[2].set_xlabel("retrainings")
    for panel, label in zip(
        panels[:, 0],
        ("rho, same run", "gain of rho, same run,\ngroups never retrained alone", "rho, other run"),
        strict=True,
    ):
        panel.set_ylabel(label)
    handles = [panel.get_legend_handles_labels() for panel in (panels[0, 0], panels[2, 0])]
    lines, labels = (first + second for first, second in zip(*handles, strict=True))
    figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw(panel: Axes, rows: Sequence[Row], key: str, less: str | None = None) -> None:
    """One line for each design."""
    for design, marker in _MARKERS.items():
        chosen = [
            row for row in rows if row["design"] in (design, *(["unrefined"] if "no prior" not in design else []))
        ]
        points = [(row["R"], row[key] - (row[less] if less else 0)) for row in chosen]
        if len(points) > 1:
            style: dict[str, Any] = {"color": ACCENT if design == "mixture" else NEUTRAL, "marker": marker}
            panel.plot(*zip(*points, strict=True), label=design, markersize=4, **style)
    _plain(panel)


def _draw_other(panel: Axes, rows: Sequence[Row], summary: Row) -> None:
    for design, (colour, style) in _OTHER_RUN.items():
        points = [(row["R"], row["rho"]) for row in rows if row["design"] == design]
        panel.plot(*zip(*points, strict=True), label=design, color=colour, linestyle=style)
    panel.axhline(summary["retrain_other_rho"], color=NEUTRAL, linestyle=":", label="another retraining of all groups")
    _plain(panel)


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.2)
