"""Every method a benchmark compares: DDM in its kinds, and what else could have answered."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from ddm.baselines import BASELINES
from ddm.baselines.protocol import CannotRun, Scores
from ddm.bench.outcome import Cost, Outcome
from ddm.bench.problem import Problem
from ddm.counterfactual import Counterfactuals
from ddm.datamodel import DistilledDatamodel
from ddm.effects import Effects, log_odds, predicted
from ddm.matching import Settings, paper, private
from ddm.matching.blocks import Block
from ddm.matching.response_work import ResponseWork
from ddm.models import Models

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
    "response": "the response itself, not encoded",
    "ddm-sequence": "DDM without clustering",
    "retrain": "another retraining",
}
"""How each method is called in tables."""


_PATIENCE = 5.0
"""Seconds after which a question is not asked again to time it."""


_RESPONSES = ("ddm-response", "response")


def settings_of(problem: Problem, method: str) -> Settings:
    """How a kind of DDM distils."""
    if method == "ddm-private":
        return private(settings_of(problem, "ddm-response"))
    if method in _RESPONSES:
        own: dict[str, Any] = {"labels": "soft", "step_size": None, "finetune_steps": 1}
        return replace(problem.setup.settings, matching="response", **own)
    mine = replace(problem.setup.settings, matching="forward" if method == "ddm-match" else "reverse")
    if method == "ddm-paper":
        _, literal = paper(problem.setup.data, problem.setup.model)
        few = min(literal.steps, mine.steps)
        return replace(literal, steps=few, checkpoints=mine.checkpoints, offset=mine.offset, seed=mine.seed)
    return mine


def find(problem: Problem, method: str) -> Outcome:
    """What a method says of a problem, measured."""
    if method == "response":
        return _response(problem)
    if method.startswith("ladder-"):
        from ddm.bench.ladder import RUNGS

        return RUNGS[method](problem)
    return _datamodel(problem, method) if method.startswith("ddm") else _baseline(problem, method)


def _datamodel(problem: Problem, method: str) -> Outcome:
    settings = settings_of(problem, method)
    datamodel = problem.datamodel(settings)
    cost = Cost(problem.matching_seconds(settings), _query_seconds(problem, datamodel), datamodel.synset.nbytes)
    return Outcome(predicted(Counterfactuals(problem.target, datamodel.synset), problem.asked), cost)


def _response(problem: Problem) -> Outcome:
    """Models displaced by the responses, as if these were kept: what response matching encodes."""
    started = time.perf_counter()
    work = ResponseWork(problem.target, problem.train, settings_of(problem, "response"))
    everything = Block(list(range(len(problem.partition))), [])
    responses = work.responses_of(problem.partition, None, everything)
    cost = Cost(time.perf_counter() - started, 0.0, responses.nbytes)
    return Outcome(predicted(Models(problem.target, responses), problem.asked), cost)


def _query_seconds(problem: Problem, datamodel: DistilledDatamodel) -> float:
    """Median time of one more question after the first, over all groups."""
    times: list[float] = []
    for index in range(min(6, len(problem.test))):
        if sum(times) > _PATIENCE:
            break
        started = time.perf_counter()
        datamodel.attribute(problem.test[index])
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:] or times))


def _baseline(problem: Problem, method: str) -> Outcome:
    started = time.perf_counter()
    try:
        scores = BASELINES[method](problem.question)
    except CannotRun as error:
        return Outcome(None, Cost(), str(error))
    seconds = time.perf_counter() - started
    asked = len(problem.test) + len(problem.validation)
    return Outcome(_effects(problem, scores), Cost(0.0, seconds / asked, scores.bytes))


def _effects(problem: Problem, scores: Scores) -> Effects:
    """Loss effects as effects on the log-odds, which they order alike; those of unions are sums."""
    base = log_odds(problem.target.outputs(problem.test.batch()[0]), problem.test.labels).numpy()
    return Effects(
        shift=scores.shift,
        margin=-scores.loss,
        validation=scores.validation,
        unions=-(problem.asked.unions.astype(float) @ scores.loss),
        base=base,
    )
