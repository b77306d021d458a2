"""``fidelity``: every method against exact retraining, with every figure. The one that decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddm.audit import OTHER, SAME, compared
from ddm.bench.methods import TITLES
from ddm.bench.outcome import Outcome
from ddm.bench.problem import Problem
from ddm.bench.report import Report, Row
from ddm.effects import Effects
from ddm.exact import group_rows
from ddm.fidelity import ceilings
from ddm.figures import FIGURES

METHODS = [name for name in TITLES if name not in ("ddm-sequence", "retrain")]


def run(problem: Problem) -> Report:
    """Score every method against retraining without every group."""
    found = problem.outcomes(METHODS)
    rows = [row(problem, name, outcome) for name, outcome in found.items()]
    rows.append(retrain_row(problem))
    return Report(
        "fidelity",
        f"How far each method agrees with retraining: {described(problem)}",
        rows,
        COLUMNS,
        notes=[
            MEANINGS,
            "slope means something only for methods whose scores are effects.",
            "*same run* scores against retraining with the target's batch order, *other run* against other orders.",
            "Scores of other tools are summed over groups and, for unions, over the groups of a union.",
            *reasons(rows),
        ],
        reference=reference(problem),
    )


COLUMNS = {
    "title": "method",
    **{name: figure.label for name, figure in FIGURES.items()},
    **{f"other_{name}": f"{FIGURES[name].label}, other run" for name in ("oracle_fraction", "rho")},
    "seconds": "seconds",
    "trainings": "in trainings",
    "query_ms": "ms a question",
    "bytes": "bytes",
}

MEANINGS = "; ".join(f"{figure.label}: {figure.meaning}" for figure in FIGURES.values()) + "."
"""What the figures mean, for the notes below a table."""


def row(problem: Problem, name: str, outcome: Outcome) -> Row:
    """Every figure of a method, what another retraining scores, the ceiling, and the cost."""
    facts: Row = {"method": name, "title": TITLES.get(name, name)}
    if outcome.effects is None:
        return facts | {"reason": outcome.reason}
    return facts | figures(outcome.effects, problem) | cost(problem, outcome)


def figures(found: Effects, problem: Problem) -> Row:
    """Every figure of predicted effects, by run."""
    table = compared(found, problem.truth, problem.setup.seed)
    values: Row = {}
    for run, prefix in ((SAME, ""), (OTHER, "other_")):
        for name in FIGURES:
            figure = table[run][name]
            values |= {
                f"{prefix}{name}": figure["value"],
                f"{prefix}{name}_low": figure["low"],
                f"{prefix}{name}_high": figure["high"],
                f"{prefix}retrain_{name}": figure["retrain"],
            }
    return values | {f"ceiling_{name}": value for name, value in ceilings(problem.truth).items()}


def cost(problem: Problem, outcome: Outcome) -> Row:
    """Seconds for all test samples, the same in trainings of the target, a question's share, and bytes."""
    paid = outcome.cost
    seconds = paid.offline + paid.query * len(problem.test)
    return {
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "query_ms": 1000 * paid.query,
        "bytes": paid.bytes,
    }


def retrain_row(problem: Problem) -> Row:
    """What another retraining scores: K trainings with one other batch order."""
    removals = group_rows(problem.partition, np.eye(len(problem.partition), dtype=bool))
    seconds = problem.exact.seconds(removals, 1) * len(removals)
    found = figures(problem.truth[1], problem)
    return {
        "method": "retrain",
        "title": TITLES["retrain"],
        **found,
        **{f"other_{name}": found[f"other_retrain_{name}"] for name in FIGURES},
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "query_ms": None,
        "bytes": problem.exact.bytes(removals, 1),
    }


def reference(problem: Problem) -> Row:
    """What all rows of a problem share."""
    return {
        "test accuracy of the target": problem.target.accuracy(problem.data.test),
        "seconds of one training": problem.training_seconds,
        "parameters": problem.target.flat.size,
        "groups": len(problem.partition),
        "batch orders": problem.setup.orders,
        **{f"ceiling_{name}": value for name, value in ceilings(problem.truth).items()},
    }


def described(problem: Problem) -> str:
    """The problem in a few words."""
    setup = problem.setup
    pixels = f" at {setup.size}×{setup.size} pixels" if setup.size else ""
    return (
        f"{setup.data}, {len(problem.train):,} training images{pixels}, {type(problem.target.network).__name__} of "
        f"{problem.target.flat.size:,} parameters, {len(problem.partition)} groups"
    )


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why some methods have no figures."""
    return [f"{row['title']} could not run: {row['reason']}" for row in rows if "reason" in row]
