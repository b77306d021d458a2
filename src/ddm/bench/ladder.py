"""``ladder``: from the paper's recipe to the response and its synset, a step at a time, and what each step is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddm.bench import fidelity
from ddm.bench.methods import TITLES, settings_of
from ddm.bench.outcome import Cost, Outcome
from ddm.bench.problem import Problem
from ddm.bench.report import Report
from ddm.counterfactual import Counterfactuals
from ddm.effects import predicted
from ddm.matching import distil
from ddm.matching.response import Responses
from ddm.models import Models
from ddm.target import Target
from ddm.training import train

Rung = Callable[[Problem], Outcome]


def _responses(problem: Problem, target: Target, *, own: bool = True, last: bool = False, **how: Any) -> Tensor:
    """Δ ``(K, P)`` of every group of a target."""
    settings = replace(settings_of(problem, "response"), **how.pop("settings", {}))
    checkpoints = [len(target.trajectory) - 1] if last else None
    asked = Responses(target, problem.train, settings, checkpoints, **how)
    members = [problem.partition.rows(group) for group in range(len(problem.partition))]
    pulls = asked.pulls(members)
    found = asked.curvature.solve(pulls)
    return asked.lengthened(found, pulls, members, asked.overlooked(pulls[::6])) if own else found


def _pulls(problem: Problem) -> Tensor:
    """ḡ_κ as they are, each with the length that least squares along it gives: no data push back sideways."""
    asked = Responses(problem.target, problem.train, settings_of(problem, "response"))
    pulls = asked.pulls([problem.partition.rows(group) for group in range(len(problem.partition))])
    bends = sum((pulls @ rows.T).square().sum(1) for rows in asked.curvature.rows())
    damped = (asked.curvature.damping * pulls.square()).sum(1)
    return pulls * (pulls.square().sum(1) / (bends + damped))[:, None]


def _displaced(problem: Problem, find: Callable[[Problem], Tensor]) -> Outcome:
    started = time.perf_counter()
    directions = find(problem)
    cost = Cost(time.perf_counter() - started, 0.0, directions.nbytes)
    return Outcome(predicted(Models(problem.target, directions), problem.asked), cost)


def _orders(problem: Problem, count: int) -> Tensor:
    """Mean response of targets of ``count`` batch orders from one initialisation, for the problem's own."""
    return torch.stack([_responses(problem, _target(problem, order)) for order in range(count)]).mean(0)


def _target(problem: Problem, order: int) -> Target:
    if not order:
        return problem.target
    recipe = replace(problem.setup.recipe, seed=problem.setup.recipe.seed + order)
    folder = problem.target_folder / f"trajectory-{order}"
    return train(problem.network, problem.train, recipe, loss=problem.loss, directory=folder)


def _synset(problem: Problem, **changes: Any) -> Outcome:
    """Models of a synset with other settings."""
    started = time.perf_counter()
    base = settings_of(problem, "ddm" if changes.get("matching") == "reverse" else "ddm-response")
    synset, _ = distil(
        problem.target, problem.train, replace(problem.partition, parents=None), replace(base, **changes)
    )
    cost = Cost(time.perf_counter() - started, 0.0, synset.nbytes)
    return Outcome(predicted(Counterfactuals(problem.target, synset), problem.asked), cost)


def _response_rung(**how: Any) -> Rung:
    return partial(_displaced, find=lambda problem: _responses(problem, problem.target, **how))


RUNGS: Mapping[str, Rung] = {
    "ladder-hard": partial(_synset, matching="reverse", labels="hard"),
    "ladder-pulls": partial(_displaced, find=_pulls),
    "ladder-last": _response_rung(last=True),
    "ladder-1024": _response_rung(settings={"curvature": 1024}),
    "ladder-4096": _response_rung(settings={"curvature": 4096}),
    "ladder-few-checkpoints": _response_rung(settings={"checkpoints": 4}),
    "ladder-few-samples": _response_rung(settings={"samples": 16}),
    "ladder-not-own": _response_rung(own=False),
    "ladder-damped-quarter": _response_rung(damped=0.25),
    "ladder-damped-4": _response_rung(damped=4.0),
    "ladder-orders": partial(_displaced, find=partial(_orders, count=3)),
    "ladder-bank-25": partial(_synset, bank=25),
    "ladder-bank-50": partial(_synset, bank=50),
    "ladder-bank-100": partial(_synset, bank=100),
    "ladder-bank-100-real": partial(_synset, bank=100, init="real"),
    "ladder-bank-200": partial(_synset, bank=200),
}

_TITLES = {
    **{name: TITLES[name] for name in ("random", "centroid", "trak", "ddm-paper")},
    "ladder-hard": "reverse matching, calibrated step, hard labels",
    "ddm": "reverse matching, calibrated step, soft targets",
    "ladder-pulls": "the pull itself, not encoded: no response",
    "ladder-last": "the response at the last checkpoint",
    "ladder-1024": "pooled over the trajectory, 1,024 curvature rows",
    "ladder-4096": "4,096 rows",
    "response": "the default number of rows",
    "ladder-few-checkpoints": "… with 4 checkpoints",
    "ladder-few-samples": "… with 16 samples a group",
    "ladder-not-own": "… without the lengths c_κ",
    "ladder-damped-quarter": "… with a quarter of the damping",
    "ladder-damped-4": "… with 4 times the damping",
    "ladder-orders": "… mean of 3 batch orders from one initialisation",
    "ladder-bank-25": "encoded in 25 noise images",
    "ladder-bank-50": "in 50",
    "ladder-bank-100": "in 100",
    "ladder-bank-100-real": "in 100 training images",
    "ladder-bank-200": "in 200 noise images",
    "ddm-response": "in as many as the tolerance asks for (the default)",
}


def run(problem: Problem) -> Report:
    """Score every rung against retraining without every group."""
    found = problem.outcomes(list(_TITLES))
    rows = [fidelity.row(problem, name, found[name]) | {"title": title} for name, title in _TITLES.items()]
    rows.append(fidelity.retrain_row(problem))
    return Report(
        "ladder",
        f"From the paper's recipe to the response: {fidelity.described(problem)}",
        rows,
        fidelity.COLUMNS,
        notes=[
            "Each row changes one thing of those above it; rows with … are side steps from the row before that has "
            "none.",
            fidelity.MEANINGS,
            "*same run* scores against retraining with the target's batch order, *other run* against other orders.",
        ],
        reference=fidelity.reference(problem),
    )
