"""``fidelity``: every method against exact retraining, by every figure. The main benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from ddm.bench.methods import TITLES
from ddm.bench.outcome import Outcome
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.groups.partition import Partition
from ddm.truth.audit import OTHER, SAME, compare_effects
from ddm.truth.effects import Effects
from ddm.truth.figures import FIGURES, noise_ceilings

METHODS = [name for name in TITLES if name not in ("ddm-sequence", "retrain")]


def run(problem: Problem) -> Report:
    """Compare the predictions of every method with retraining without each group."""
    rows = [method_row(problem, name, outcome) for name, outcome in problem.outcomes(METHODS).items()]
    rows.append(retrain_row(problem))
    return Report(
        "fidelity",
        f"Agreement of each method with retraining: {describe_problem(problem)}",
        rows,
        COLUMNS,
        notes=[
            *FIGURE_NOTES,
            "The scores of other tools are summed over the samples of a group, and over the groups of a union.",
            *failure_notes(rows),
        ],
        reference=shared_facts(problem),
    )


FIGURE_NOTES = [
    "; ".join(f"{figure.name}: {figure.meaning}" for figure in FIGURES.values()) + ".",
    "The slope means something only for methods whose scores are effects.",
    "The truth is retraining with the target's batch order. Columns *other run* compare with other batch orders.",
]
"""How to read the columns of ``fidelity`` and ``ladder``."""


COLUMNS = {
    "title": "method",
    **{name: name for name in FIGURES},
    **{f"other_{name}": f"{name}, other run" for name in ("oracle_fraction", "rho")},
    "seconds": "seconds",
    "trainings": "cost in trainings",
    "query_ms": "ms per question",
    "bytes": "bytes",
}


def method_row(problem: Problem, name: str, outcome: Outcome) -> Row:
    """Every figure of a method, the same figures of another retraining, their ceilings, and the cost."""
    facts: Row = {"method": name, "title": TITLES.get(name, name)}
    if outcome.effects is None:
        return facts | {"reason": outcome.reason}
    return facts | fidelity_figures(outcome.effects, problem) | cost_columns(problem, outcome)


def fidelity_figures(predicted: Effects, problem: Problem) -> Row:
    """Every figure of predicted effects, against the same batch order and against others (``other_…``)."""
    table = compare_effects(predicted, problem.truth, problem.setup.seed)
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
    return values | {f"ceiling_{name}": value for name, value in noise_ceilings(problem.truth).items()}


def cost_columns(problem: Problem, outcome: Outcome) -> Row:
    """Seconds for all test samples, also in units of one training, milliseconds per question, and bytes."""
    cost = outcome.cost
    seconds = cost.offline + cost.query * len(problem.test)
    return {
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "query_ms": 1000 * cost.query,
        "bytes": cost.bytes,
    }


def retrain_row(problem: Problem) -> Row:
    """The figures of K retrainings with another batch order, one without each group."""
    removals = problem.single_groups
    seconds = problem.exact.mean_seconds(removals, 1) * len(removals)
    figures = fidelity_figures(problem.truth[1], problem)
    return {
        "method": "retrain",
        "title": TITLES["retrain"],
        **figures,
        **{f"other_{name}": figures[f"other_retrain_{name}"] for name in FIGURES},
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "query_ms": None,
        "bytes": problem.exact.parameter_bytes(removals, 1),
    }


def shared_facts(problem: Problem) -> Row:
    """Facts of the problem that all rows share."""
    return {
        "test accuracy of the target": problem.target.accuracy(problem.data.test),
        "seconds of one training": problem.training_seconds,
        "parameters": problem.target.flat.size,
        "groups": len(problem.partition),
        "batch orders": problem.setup.orders,
        **{f"ceiling_{name}": value for name, value in noise_ceilings(problem.truth).items()},
    }


def describe_data(problem: Problem) -> str:
    """The dataset, the number of training samples, and the size of images."""
    setup = problem.setup
    pixels = f" at {setup.size}×{setup.size} pixels" if setup.size else ""
    what = "images" if len(problem.train.shape) == 3 else "samples"
    return f"{setup.data}, {len(problem.train):,} training {what}{pixels}"


def describe_problem(problem: Problem, partition: Partition | None = None) -> str:
    """The data, the network and the number of groups, for captions."""
    target, groups = problem.target, len(partition or problem.partition)
    network = f"{type(target.network).__name__} of {target.flat.size:,} parameters"
    return f"{describe_data(problem)}, {network}, {groups} groups"


def failure_notes(rows: Sequence[Row]) -> list[str]:
    """A sentence for each method that could not run."""
    return [f"{row['title']} could not run: {row['reason']}" for row in rows if "reason" in row]
