"""The paper's protocol: locate a group for each test sample, retrain without it, and measure Dist_1, Dist_2, Dist_3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddm.bench import fidelity
from ddm.bench.outcome import Outcome
from ddm.bench.problem import Problem
from ddm.bench.report import Row
from ddm.effects import Effects


def rows_by_method(problem: Problem, methods: Sequence[str]) -> list[Row]:
    """A row a method: its figures, and each distance at the groups that it locates."""
    return [_row(problem, name, outcome) for name, outcome in problem.outcomes(methods).items()]


def reference_rows(problem: Problem) -> list[Row]:
    """What another retraining locates, and the best possible."""
    true = problem.truth[0]
    return [
        fidelity.retrain_row(problem) | located(problem.truth[1], true),
        {"method": "best", "title": "the best possible group"} | best(true),
    ]


def _row(problem: Problem, name: str, outcome: Outcome) -> Row:
    true = problem.truth[0]
    where: Row = located(outcome.effects, true) if outcome.effects is not None else {}
    return fidelity.row(problem, name, outcome) | (chance(true) if name == "random" else where)


def distances(true: Effects) -> dict[str, np.ndarray]:
    """Dist_1, Dist_2 and Dist_3 ``(K, m)`` of the models that were really retrained without each group."""
    loss = np.logaddexp(0.0, -(true.base + true.margin))
    return {"dist_1": true.shift, "dist_2": loss, "dist_3": 1 / (1 + true.shift)}


def wanted(found: Effects) -> dict[str, np.ndarray]:
    """What orders groups for each distance ``(K, m)``: the group with the largest value is located."""
    return {"dist_1": found.shift, "dist_2": -found.margin, "dist_3": -found.shift}


def located(found: Effects, true: Effects) -> Row:
    """Each distance at the groups that predicted effects locate, and what it is of what could be gained over chance."""
    row: Row = {}
    for name, values in distances(true).items():
        chosen = np.take_along_axis(values, wanted(found)[name].argmax(0)[None], 0).mean()
        row |= _placed(name, float(chosen), values)
    return row


def chance(true: Effects) -> Row:
    """Each distance at a random group, in expectation."""
    row: Row = {}
    for name, values in distances(true).items():
        row |= _placed(name, float(values.mean()), values)
    return row


def best(true: Effects) -> Row:
    """Each distance at the best possible group."""
    row: Row = {}
    for name, values in distances(true).items():
        row |= _placed(name, float(values.max(0).mean()), values)
    return row


def _placed(name: str, value: float, values: np.ndarray) -> Row:
    random, most = values.mean(), values.max(0).mean()
    gained = float((value - random) / (most - random)) if most > random else None
    scale = 100 if name == "dist_1" else 1
    return {name: scale * value, f"{name}_gained": gained}
