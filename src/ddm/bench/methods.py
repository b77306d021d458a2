"""The methods that benchmarks compare: the variants of DDM, and the baselines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.baselines import BASELINES
from ddm.baselines.protocol import CannotRun, Scores
from ddm.bench.outcome import Cost, Outcome
from ddm.bench.problem import Problem
from ddm.counterfactual.displaced import Models
from ddm.data.tasks import Regression, Task
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings, paper, private
from ddm.distil.blocks import Block
from ddm.distil.response.matching import ResponseMatching
from ddm.truth.effects import Effects, log_odds, predict_effects

TITLES = {
    "random": "random",
    "predict": "predict-based",
    "centroid": "clustering-based (nearest centroid)",
    "size": "cluster size",
    "tracin": "TracIn (captum)",
    "trak": "TRAK (traker)",
    "ekfac": "EK-FAC (kronfluence)",
    "koh-cg": "Koh and Liang, conjugate gradient (dattri)",
    "koh-lissa": "Koh and Liang, LiSSA (dattri)",
    "fastif": "FastIF",
    "arnoldi": "Schioppa et al., Arnoldi (captum)",
    "ddm-paper": "DDM, the paper's settings taken literally",
    "ddm-match": "DDM-match (forward matching)",
    "ddm": "DDM (reverse matching)",
    "ddm-response": "DDM (response matching)",
    "ddm-private": "DDM (response matching, --private)",
    "response": "the response itself, not encoded in a synset",
    "ddm-sequence": "DDM without clustering",
    "retrain": "another retraining",
}
"""Names of the methods in tables."""


_TIMING_LIMIT = 5.0
"""Maximum seconds of timing; after that, no further question is timed."""


_RESPONSES = ("ddm-response", "response")


def settings_of(problem: Problem, method: str) -> Settings:
    """The distillation settings of a variant of DDM. It keeps no responses, so that the synset is scored alone."""
    if method == "ddm-private":
        return private(settings_of(problem, "ddm-response"))
    if method in _RESPONSES:
        required: dict[str, Any] = {"labels": "soft", "step_size": None, "finetune_steps": 1}
        return replace(problem.setup.settings, matching="response", keep=0.0, synset=True, **required)
    mine = replace(problem.setup.settings, matching="forward" if method == "ddm-match" else "reverse")
    if method == "ddm-paper":
        _, literal = paper(problem.setup.data, problem.setup.model)
        steps = min(literal.steps, mine.steps)
        return replace(literal, steps=steps, checkpoints=mine.checkpoints, offset=mine.offset, seed=mine.seed)
    return mine


def run_method(problem: Problem, method: str) -> Outcome:
    """Run a method on a problem and measure its cost."""
    if method == "response":
        return _run_response(problem)
    if method.startswith("ladder-"):
        from ddm.bench.ladder import RUNGS

        return RUNGS[method](problem)
    return _run_datamodel(problem, method) if method.startswith("ddm") else _run_baseline(problem, method)


def _run_datamodel(problem: Problem, method: str) -> Outcome:
    settings = settings_of(problem, method)
    datamodel = problem.datamodel(settings)
    cost = Cost(problem.matching_seconds(settings), _query_seconds(problem, datamodel), datamodel.synset.nbytes)
    return Outcome(predict_effects(datamodel.models, problem.effect_query), cost)


def _run_response(problem: Problem) -> Outcome:
    """Models displaced by the exact responses, which response matching encodes in synsets."""

    def find_responses(problem: Problem) -> Tensor:
        work = ResponseMatching(problem.target, problem.train, settings_of(problem, "response"))
        return work.responses_of(problem.partition, None, Block(list(range(len(problem.partition))), []))

    return displacement_outcome(problem, find_responses)


def displacement_outcome(problem: Problem, find_displacements: Callable[[Problem], Tensor]) -> Outcome:
    """The outcome of moving θ by displacements ``(K, P)``, one for each group's removal."""
    started = time.perf_counter()
    displacements = find_displacements(problem)
    cost = Cost(time.perf_counter() - started, 0.0, displacements.nbytes)
    return Outcome(predict_effects(Models(problem.target, displacements), problem.effect_query), cost)


def _query_seconds(problem: Problem, datamodel: DistilledDatamodel) -> float:
    """Median seconds of a question about all groups, after a first one to warm up."""
    times: list[float] = []
    for index in range(min(6, len(problem.test))):
        if sum(times) > _TIMING_LIMIT:
            break
        started = time.perf_counter()
        datamodel.attribute(problem.test[index])
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:] or times))


def _run_baseline(problem: Problem, method: str) -> Outcome:
    started = time.perf_counter()
    try:
        scores = BASELINES[method](problem.score_request)
    except CannotRun as error:
        return Outcome(None, Cost(), str(error))
    seconds = time.perf_counter() - started
    queries = len(problem.test) + len(problem.validation)
    return Outcome(_effects_of_scores(problem, scores), Cost(0.0, seconds / queries, scores.bytes))


def _effects_of_scores(problem: Problem, scores: Scores) -> Effects:
    """Effects from scores: the effect of a union is the sum over groups."""
    task, outputs, labels = problem.target.task, problem.target.outputs(problem.test.batch()[0]), problem.test.labels
    base = (log_odds if task.has_classes else task.margin)(outputs, labels).numpy()
    margin = scores.loss / _loss_slopes(task, outputs, labels)
    return Effects(
        shift=scores.shift,
        margin=margin,
        validation=scores.validation,
        unions=problem.effect_query.unions.astype(float) @ margin,
        base=base,
    )


def _loss_slopes(task: Task, outputs: Tensor, labels: Tensor) -> np.ndarray:
    """How each test loss changes with its margin ``(m,)``: by −1, because only the order over groups counts.

    The margin of a regression is the prediction, which the loss may rise or fall with.
    """
    if not isinstance(task, Regression):
        return -np.ones(len(labels))
    outputs = outputs.double().requires_grad_()
    (slopes,) = torch.autograd.grad(task.losses(outputs, labels).sum(), outputs)
    found: np.ndarray = slopes.sum(1).cpu().numpy()
    return np.where(found == 0, 1.0, found)
