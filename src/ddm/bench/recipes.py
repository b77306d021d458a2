"""``recipes``: how momentum, weight decay, a schedule, Adam, BatchNorm and augmentation change fidelity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddm.bench import fidelity
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem

_CLUSTERS, _UNIONS = 3, 6
"""Maximum clusters per class and unions of groups; they are few because every recipe needs its own retrainings."""

_RIVALS = {"centroid": "nearest centroid", "trak": "TRAK", "ekfac": "EK-FAC"}


def variants(problem: Problem) -> Mapping[str, tuple[str, dict[str, Any]]]:
    """By name: a title, and the changes of the setup."""
    recipe, options = problem.setup.recipe, problem.setup.options
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("plain SGD", {}),
        "momentum": (
            f"momentum 0.9, learning rate {recipe.rate / 10:g}",
            {"recipe": replace(recipe, momentum=0.9, lr=recipe.rate / 10)},
        ),
        "decay": ("weight decay 0.005", {"recipe": replace(recipe, weight_decay=0.005)}),
        "cosine": ("cosine schedule", {"recipe": replace(recipe, schedule="cosine")}),
        "adam": ("Adam, learning rate 0.003", {"recipe": replace(recipe, optimizer="adam", lr=0.003)}),
        "shift": ("augmentation by random shifts", {"recipe": replace(recipe, augment="shift")}),
    }
    if problem.setup.model == "convnet":
        changes["batchnorm"] = ("BatchNorm", {"options": {**options, "norm": "batch"}})
    return changes


def small_problem(problem: Problem) -> Problem:
    """The same problem with few groups, unions and batch orders."""
    return problem.with_changes(
        clusters=min(_CLUSTERS, problem.setup.clusters), unions=min(_UNIONS, problem.setup.unions), orders=2
    )


def run(problem: Problem) -> Report:
    """Compare response matching with retraining, for a target of each recipe."""
    small = small_problem(problem)
    rows = [_row(small.with_changes(**changes), name, title) for name, (title, changes) in variants(problem).items()]
    return Report(
        "recipes",
        f"Fidelity by training recipe: {fidelity.describe_problem(small)}",
        rows,
        {
            "title": "recipe",
            "accuracy": "test accuracy",
            "oracle_fraction": "oracle_fraction",
            "retrain_oracle_fraction": "oracle_fraction of another retraining",
            **{f"{name}_oracle_fraction": f"oracle_fraction of {title}" for name, title in _RIVALS.items()},
            "rho": "rho",
            "retrain_rho": "rho of another retraining",
            "ceiling_rho": "ceiling of rho",
            **{f"{name}_rho": f"rho of {title}" for name, title in _RIVALS.items()},
            "lds": "lds",
            "retrain_lds": "lds of another retraining",
        },
        notes=[
            "oracle_fraction, rho and lds are those of response matching (the default), beside those of another "
            "retraining and of other methods. Each recipe has its own target, groups and retrainings, with the "
            "target's batch order.",
        ],
        reference={"groups": len(small.partition), "batch orders": 2},
    )


def _row(problem: Problem, name: str, title: str) -> Row:
    outcomes = problem.outcomes(["ddm-response", *_RIVALS])
    rivals: Row = {}
    for rival in _RIVALS:
        row = fidelity.method_row(problem, rival, outcomes[rival])
        rivals |= {f"{rival}_{figure}": row.get(figure) for figure in ("oracle_fraction", "rho")}
    mine = fidelity.method_row(problem, "ddm-response", outcomes["ddm-response"])
    accuracy = problem.target.accuracy(problem.data.test)
    return {**mine, "method": name, "title": title, "accuracy": accuracy, **rivals}
