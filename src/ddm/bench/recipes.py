"""``recipes`` and ``tables-and-texts``: fidelity on the stored problems, against their stored retrainings.

``recipes`` compares training recipes on images; for other data it retrains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddm.bench import fidelity
from ddm.bench.methods import TITLES
from ddm.bench.outcome import Outcome
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.problems import PROBLEMS, TABLES_AND_TEXTS, stored_setup, variants
from ddm.bench.truth_files import truth_file
from ddm.bench.truths import StoredTruth
from ddm.compute.engine import Engine
from ddm.errors import InputError
from ddm.truth.effects import Effects
from ddm.truth.figures import FIGURES, estimate_figures, noise_ceilings

_CLUSTERS, _UNIONS = 3, 6
"""Maximum clusters per class and unions of groups; they are few because every recipe needs its own retrainings."""

_METHODS = {
    "response": "responses",
    "ddm-response": "synset",
    "centroid": "nearest centroid",
    "trak": "TRAK",
    "ekfac": "EK-FAC",
    "retrain": "another retraining",
}
"""The methods that are compared, with short titles."""

_EFFECTS = ("response", "ddm-response")
"""The methods whose figures of size and whose cost the page shows."""


def small_variants(problem: Problem) -> dict[str, tuple[str, Problem]]:
    """The problem under each recipe, with few groups, unions and batch orders: title and problem by name."""
    clusters, unions = min(_CLUSTERS, problem.setup.clusters), min(_UNIONS, problem.setup.unions)
    base = replace(problem.setup, clusters=clusters, unions=unions, orders=2)
    return {
        name: (title, Problem(setup, problem.work, problem.engine)) for name, (title, setup) in variants(base).items()
    }


def run(problem: Problem) -> Report:
    """Compare methods with retraining, for a target of each recipe. Nothing is stored, so all of it is retrained."""
    chosen = small_variants(problem)
    return _report("recipes", f"Fidelity by training recipe: {fidelity.describe_problem(chosen['plain'][1])}", chosen)


STORED = {
    "recipes": "Fidelity by training recipe, on the stored problems",
    "tables-and-texts": "Fidelity on tables and texts, on the stored problems",
}
"""Titles of the benchmarks on stored problems, by name."""


def run_stored(
    bench: str, names: Sequence[str], truths: Path, root: str | None, work: Path, engine: Engine = None
) -> Report:
    """Compare methods with the stored retrainings of problems. A problem without a file in ``truths`` is retrained."""
    chosen = {}
    for name in names or stored_names(bench, truths):
        path = truth_file(truths, name)
        setup = stored_setup(name, root)
        stored = StoredTruth.load(path) if path.exists() else None
        chosen[name] = (PROBLEMS[name][0], Problem(setup, work, engine, stored))
    return _report(bench, STORED[bench], chosen)


def stored_names(bench: str, truths: Path) -> list[str]:
    """The problems of one of the benchmarks ``STORED`` that have a file in a folder."""
    wanted = [name for name in PROBLEMS if (name in TABLES_AND_TEXTS) == (bench == "tables-and-texts")]
    names = [name for name in wanted if truth_file(truths, name).exists()]
    if not names:
        raise InputError(
            f"there are no stored truths in '{truths}': make them with ddm bench truths, give their folder as "
            "--truths, or name a dataset with --data to retrain."
        )
    return names


def _report(bench: str, title: str, problems: Mapping[str, tuple[str, Problem]]) -> Report:
    rows = [_row(problem, name, title) for name, (title, problem) in problems.items()]
    return Report(
        bench,
        title,
        rows,
        {
            "title": "problem",
            "accuracy": "test accuracy",
            **_columns("oracle_fraction", _METHODS),
            **_columns("rho", _METHODS),
            "ceiling_rho": "ceiling of rho",
            **_columns("rho_share", _EFFECTS, "rho / ceiling"),
            **_columns("slope", _EFFECTS),
            **_columns("trainings", _EFFECTS, "cost in trainings"),
        },
        notes=[
            "Each figure compares with retraining without each group, with the target's batch order. Every problem has "
            "its own target, groups and retrainings; another retraining has another batch order.",
            "The responses are those that the synset encodes. Their cost in trainings is the time before the first "
            "question, divided by the time of one training on this machine.",
            *(_NOTES if bench == "tables-and-texts" else []),
            "The JSON file has all figures of all methods with their intervals.",
            *(f"{row['title']}: {reason}" for row in rows for reason in row["reasons"]),
        ],
    )


_NOTES = [
    "Regressions have R² in place of the test accuracy, and the predicted number in place of the log-odds.",
    "EK-FAC leaves out embeddings and normalisation layers, which kronfluence does not support.",
]


def _columns(figure: str, methods: Mapping[str, str] | Sequence[str], heading: str | None = None) -> dict[str, str]:
    """The columns of a figure, one for each method."""
    return {f"{name}_{figure}": f"{heading or figure}, {_METHODS[name]}" for name in methods}


def _row(problem: Problem, name: str, title: str) -> Row:
    """The figures of every method on a problem."""
    for method in _EFFECTS:
        problem.outcomes([method])  # alone, because other methods at the same time would change its cost
    outcomes = problem.outcomes([method for method in _METHODS if method != "retrain"])
    predicted = {method: outcome.effects for method, outcome in outcomes.items()} | {"retrain": problem.truth[1]}
    ceiling = noise_ceilings(problem.truth)["rho"]
    row: Row = {
        "method": name,
        "title": title,
        "groups": len(problem.partition),
        "parameters": problem.target.flat.size,
        "accuracy": problem.test_score,
        "ceiling_rho": ceiling,
        "reasons": [f"{TITLES[method]} could not run: {one.reason}" for method, one in outcomes.items() if one.reason],
    }
    for method, effects in predicted.items():
        row |= {} if effects is None else _figures(effects, problem, method, ceiling)
    return row | _costs(problem, outcomes)


def _figures(predicted: Effects, problem: Problem, method: str, ceiling: float) -> Row:
    """Every figure of a method with its interval, and rho as a share of its ceiling."""
    estimates = estimate_figures(predicted, problem.truth[0], seed=problem.setup.seed)
    row: Row = {f"{method}_rho_share": estimates["rho"].value / ceiling if ceiling else float("nan")}
    for figure in FIGURES:
        found, key = estimates[figure], f"{method}_{figure}"
        row |= {key: found.value, f"{key}_low": found.low, f"{key}_high": found.high}
    return row


def _costs(problem: Problem, outcomes: Mapping[str, Outcome]) -> Row:
    """Time before the first question, in trainings of the target."""
    return {f"{name}_trainings": outcomes[name].cost.offline / problem.training_seconds for name in _EFFECTS}
