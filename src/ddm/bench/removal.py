"""Test accuracy after removing a share of the training data, in the order that each method gives, and retraining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ddm.bench import fidelity
from ddm.bench.output import Row
from ddm.bench.problem import NO_ROWS, Problem


def least_useful_first(effect: np.ndarray) -> np.ndarray:
    """Sort groups by their effect on the validation loss ``(K,)``: first the one whose removal lowers it most."""
    return np.argsort(effect, kind="stable")


def first_rows(problem: Problem, order: np.ndarray, share: float) -> np.ndarray:
    """Row numbers of the first ``share`` of the samples in an order of groups; the last group is cut at random."""
    generator = np.random.default_rng(problem.setup.seed)
    rows = np.concatenate([generator.permutation(problem.partition.rows(group)) for group in order])
    return np.sort(rows[: round(share * len(problem.train))])


def random_rows(problem: Problem, share: float) -> np.ndarray:
    """Row numbers of a random ``share`` of the samples."""
    generator = np.random.default_rng([problem.setup.seed, 11])
    return np.sort(generator.permutation(len(problem.train))[: round(share * len(problem.train))])


def rows_by_method(problem: Problem, methods: Sequence[str], shares: Mapping[str, float], orders: int) -> list[Row]:
    """A row per method: its figures, and the test accuracy after removing each share of the data in its order.

    Two more rows remove random samples, and groups in the order of their true effects.
    """
    outcomes = problem.outcomes(methods)
    effects = {name: one.effects.validation for name, one in outcomes.items() if one.effects is not None}
    effects["retrain"] = np.mean([true.validation for true in problem.truth], axis=0)
    removals = {
        name: {column: first_rows(problem, least_useful_first(effect), share) for column, share in shares.items()}
        for name, effect in effects.items()
    }
    removals["random-samples"] = {column: random_rows(problem, share) for column, share in shares.items()}
    measured = accuracies(problem, removals, range(orders))
    rows = [
        {"method": "random-samples", "title": "random samples"},
        *(fidelity.method_row(problem, name, outcome) for name, outcome in outcomes.items()),
        fidelity.retrain_row(problem) | {"title": "the true effect of each group, by retraining"},
    ]
    for row in rows:
        row |= measured.get(row["method"], {})
        if row["method"] in effects:
            row["effects"] = effects[row["method"]].tolist()
        if row["method"] == "random":
            row["title"] = "random groups"
    return rows


def accuracies(
    problem: Problem, removals: Mapping[str, Mapping[str, np.ndarray]], orders: Sequence[int]
) -> dict[str, Row]:
    """Test accuracy in % without the rows of each removal, by method and column: mean and spread over batch orders."""
    everything = [NO_ROWS, *(rows for columns in removals.values() for rows in columns.values())]
    problem.exact.run(everything, orders)
    table = {}
    for method, columns in removals.items():
        row: Row = {}
        for column, rows in {"0 %": NO_ROWS, **columns}.items():
            values = [_retrained_accuracy(problem, rows, order) for order in orders]
            row |= {column: 100 * float(np.mean(values)), f"{column} spread": 100 * float(np.std(values))}
        table[method] = row
    return table


def _retrained_accuracy(problem: Problem, rows: np.ndarray, order: int) -> float:
    x, y = problem.data.test.batch()
    outputs = problem.exact.outputs([rows], order, x)[0]
    return float((outputs.argmax(1) == y).double().mean())
