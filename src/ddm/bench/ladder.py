"""``ladder``: from the paper's settings to response matching, one change at a time, and the gain of each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddm.bench import fidelity
from ddm.bench.methods import TITLES, displacement_outcome, settings_of
from ddm.bench.outcome import Cost, Outcome
from ddm.bench.output import Report
from ddm.bench.problem import Problem
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.distil import distil
from ddm.distil.response.solve import Responses
from ddm.training.target import Target
from ddm.truth.effects import predict_effects

Rung = Callable[[Problem], Outcome]


def _responses(
    problem: Problem,
    target: Target,
    *,
    others: bool = True,
    last: bool = False,
    **changes: Any,
) -> Tensor:
    """Δ ``(K, P)`` of every group.

    others:  leave the group's own curvature out of the solve
    last:    use only the last checkpoint
    changes: changed distillation settings
    """
    settings = replace(settings_of(problem, "response"), **changes)
    checkpoints = [len(target.trajectory) - 1] if last else None
    responses = Responses(target, problem.train, settings, checkpoints)
    members = problem.single_groups
    pulls = responses.pulls(members)
    responses.choose_damping(pulls)
    return responses.without_own(pulls, members)[0] if others else responses.curvature.solve(pulls)


def _pulls(problem: Problem) -> Tensor:
    """The pulls ḡ_κ ``(K, P)``, not solved: the curvature only sets the length of each, by least squares along it."""
    responses = Responses(problem.target, problem.train, settings_of(problem, "response"))
    pulls = responses.pulls(problem.single_groups)
    return pulls * (pulls.square().sum(1) / responses.curvature.unseen_quadratic(pulls))[:, None]


def _mean_responses(problem: Problem, orders: int) -> Tensor:
    """Mean response of targets with different batch orders from the same initial weights."""
    targets = [problem.target_with_order(order) for order in range(orders)]
    return torch.stack([_responses(problem, target) for target in targets]).mean(0)


def _synset_outcome(problem: Problem, **changes: Any) -> Outcome:
    """The outcome of a synset distilled with changed settings."""
    started = time.perf_counter()
    base = settings_of(problem, "ddm" if changes.get("matching") == "reverse" else "ddm-response")
    partition = replace(problem.partition, parents=None)
    synset = distil(problem.target, problem.train, partition, replace(base, **changes)).made_synset
    cost = Cost(time.perf_counter() - started, 0.0, synset.nbytes)
    return Outcome(predict_effects(Counterfactuals(problem.target, synset), problem.effect_query), cost)


def _response_rung(**options: Any) -> Rung:
    return partial(
        displacement_outcome, find_displacements=lambda problem: _responses(problem, problem.target, **options)
    )


RUNGS: Mapping[str, Rung] = {
    "ladder-hard": partial(_synset_outcome, matching="reverse", labels="hard"),
    "ladder-pulls": partial(displacement_outcome, find_displacements=_pulls),
    "ladder-last": _response_rung(last=True),
    "ladder-1024": _response_rung(curvature=1024),
    "ladder-4096": _response_rung(curvature=4096),
    "ladder-few-checkpoints": _response_rung(checkpoints=4),
    "ladder-few-samples": _response_rung(samples=16),
    "ladder-not-own": _response_rung(others=False),
    "ladder-damping-1": _response_rung(damping=1.0),
    "ladder-damping-10": _response_rung(damping=10.0),
    "ladder-orders": partial(displacement_outcome, find_displacements=partial(_mean_responses, orders=3)),
    "ladder-bank-25": partial(_synset_outcome, bank=25),
    "ladder-bank-50": partial(_synset_outcome, bank=50),
    "ladder-bank-100": partial(_synset_outcome, bank=100),
    "ladder-bank-100-real": partial(_synset_outcome, bank=100, init="real"),
    "ladder-bank-200": partial(_synset_outcome, bank=200),
}

_TITLES = {
    **{name: TITLES[name] for name in ("random", "centroid", "trak", "ddm-paper")},
    "ladder-hard": "reverse matching, calibrated step, hard labels",
    "ddm": "reverse matching, calibrated step, soft targets",
    "ladder-pulls": "the pull itself, without a response or a synset",
    "ladder-last": "the response at the last checkpoint",
    "ladder-1024": "pooled over all checkpoints, 1,024 curvature rows",
    "ladder-4096": "4,096 rows",
    "response": "the default number of rows",
    "ladder-few-checkpoints": "… with 4 checkpoints",
    "ladder-few-samples": "… with 16 samples per group",
    "ladder-not-own": "… with the group's own curvature",
    "ladder-damping-1": "… with the damping of the training, not chosen",
    "ladder-damping-10": "… with 10 times that damping",
    "ladder-orders": "… mean of 3 batch orders from one initialisation",
    "ladder-bank-25": "encoded in 25 noise images",
    "ladder-bank-50": "in 50",
    "ladder-bank-100": "in 100",
    "ladder-bank-100-real": "in 100 training images",
    "ladder-bank-200": "in 200 noise images",
    "ddm-response": "in as many as the tolerance requires (the default)",
}


def run(problem: Problem) -> Report:
    """Compare every rung with retraining without each group."""
    outcomes = problem.outcomes(list(_TITLES))
    rows = [fidelity.method_row(problem, name, outcomes[name]) | {"title": title} for name, title in _TITLES.items()]
    rows.append(fidelity.retrain_row(problem))
    return Report(
        "ladder",
        f"From the paper's settings to response matching: {fidelity.describe_problem(problem)}",
        rows,
        fidelity.COLUMNS,
        notes=[
            "Each row changes one thing from the row above. A row with … is a side step from the last row without it.",
            *fidelity.FIGURE_NOTES,
        ],
        reference=fidelity.shared_facts(problem),
    )
