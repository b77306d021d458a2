"""The paper's protocol: locate a group for each test sample, retrain without it, and measure three distances.

    Dist_1: squared change of the predicted probabilities; the group that moves the prediction most is located
    Dist_2: loss after the removal; the group that supports the correct label most is located
    Dist_3: 1/(1 + Dist_1); the group that matters least is located

A larger distance is better. Each is also given as a share of the possible gain: 0 is a random group, 1 the best group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ddm.bench import fidelity
from ddm.bench.outcome import Outcome
from ddm.bench.output import Row
from ddm.bench.problem import Problem
from ddm.truth.effects import Effects


def rows_by_method(problem: Problem, methods: Sequence[str]) -> list[Row]:
    """A row per method: its figures, and the mean distances at the groups that it locates."""
    return [_row(problem, name, outcome) for name, outcome in problem.outcomes(methods).items()]


def reference_rows(problem: Problem) -> list[Row]:
    """Rows of another retraining and of the best possible groups."""
    true = problem.truth[0]
    return [
        fidelity.retrain_row(problem) | located_distances(problem.truth[1], true),
        {"method": "best", "title": "the best possible group"} | best_distances(true),
    ]


def _row(problem: Problem, name: str, outcome: Outcome) -> Row:
    true = problem.truth[0]
    measured: Row = {}
    if name == "random":
        measured = random_distances(true)
    elif outcome.effects is not None:
        measured = located_distances(outcome.effects, true)
    return fidelity.method_row(problem, name, outcome) | measured


def distances(true: Effects) -> dict[str, np.ndarray]:
    """Dist_1, Dist_2 and Dist_3 ``(K, m)`` of the models retrained without each group."""
    loss = np.logaddexp(0.0, -(true.base + true.margin))
    return {"dist_1": true.shift, "dist_2": loss, "dist_3": 1 / (1 + true.shift)}


def ranking_scores(predicted: Effects) -> dict[str, np.ndarray]:
    """Predicted scores ``(K, m)`` for each distance; the group with the highest score is located."""
    return {"dist_1": predicted.shift, "dist_2": -predicted.margin, "dist_3": -predicted.shift}


def located_distances(predicted: Effects, true: Effects) -> Row:
    """Mean distances at the groups that predicted effects locate."""
    scores = ranking_scores(predicted)
    return _mean_distances(true, lambda name, values: np.take_along_axis(values, scores[name].argmax(0)[None], 0))


def random_distances(true: Effects) -> Row:
    """Expected distances at random groups."""
    return _mean_distances(true, lambda name, values: values)


def best_distances(true: Effects) -> Row:
    """Mean distances at the best possible groups."""
    return _mean_distances(true, lambda name, values: values.max(0))


def _mean_distances(true: Effects, choose: Callable[[str, np.ndarray], np.ndarray]) -> Row:
    """The mean of the chosen values of each distance, and its share of the possible gain over a random group."""
    row: Row = {}
    for name, values in distances(true).items():
        mean, random, best = choose(name, values).mean(), values.mean(), values.max(0).mean()
        gained = float((mean - random) / (best - random)) if best > random else None
        row |= {name: (100 if name == "dist_1" else 1) * float(mean), f"{name}_gained": gained}
    return row
