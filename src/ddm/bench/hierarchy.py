"""``hierarchy``: searching the class first and then the cluster, compared with searching every group."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ddm.bench import fidelity
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.datamodel import DistilledDatamodel
from ddm.truth.figures import oracle_fraction


def run(problem: Problem) -> Report:
    """Trace every test sample both ways."""
    datamodel = problem.datamodel(settings_of(problem, "ddm-response"))
    for full in (True, False):
        datamodel.trace(problem.test[0], full=full)  # caches the directions of clusters and of classes
    searched = {full: _trace_all(problem, datamodel, full) for full in (True, False)}
    rows = [_row(problem, full, search, searched[True].groups) for full, search in searched.items()]
    return Report(
        "hierarchy",
        f"Searching class first and then cluster: {fidelity.describe_problem(problem)}",
        rows,
        {
            "title": "search",
            "fine_tunings": "fine-tunings",
            "query_ms": "ms per question",
            "agreement": "same group as the full search",
            "same_class": "same class",
            "oracle_fraction": "oracle_fraction",
        },
        notes=[
            f"{len(problem.test)} test samples are traced by the prediction shift (Dist_1); ms is the median.",
            "The paper states 5 times fewer fine-tunings with 10 × 10 groups and 10 times fewer with 100 × 10. Here "
            "directions are cached, so a fine-tuning is one addition and forward passes take most of the time.",
        ],
        reference=fidelity.shared_facts(problem),
    )


@dataclass(frozen=True)
class _Search:
    """The located group of each test sample ``(m,)``, the fine-tunings and the seconds that each search took."""

    groups: np.ndarray
    models: list[int]
    seconds: list[float]


def _trace_all(problem: Problem, datamodel: DistilledDatamodel, full: bool) -> _Search:
    groups, models, seconds = [], [], []
    for index in range(len(problem.test)):
        started = time.perf_counter()
        trace = datamodel.trace(problem.test[index], full=full)
        seconds.append(time.perf_counter() - started)
        groups.append(problem.partition.index(trace.group))
        models.append(trace.models)
    return _Search(np.array(groups), models, seconds)


def _row(problem: Problem, full: bool, search: _Search, full_groups: np.ndarray) -> Row:
    seconds = float(np.sum(search.seconds))
    return {
        "method": "full" if full else "hierarchical",
        "title": "every group" if full else "class, then cluster",
        "fine_tunings": float(np.mean(search.models)),
        "query_ms": 1000 * float(np.median(search.seconds)),
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "agreement": float((search.groups == full_groups).mean()),
        "same_class": _same_class(problem, search.groups, full_groups),
        **_oracle_fractions(problem, search.groups),
    }


def _same_class(problem: Problem, groups: np.ndarray, others: np.ndarray) -> float:
    parents = np.asarray(problem.partition.parents)
    return float((parents[groups] == parents[others]).mean())


def _oracle_fractions(problem: Problem, groups: np.ndarray) -> Row:
    """oracle_fraction of the located groups ``(m,)``, by batch order, and that of another retraining."""
    located = np.zeros((len(problem.partition), len(groups)))
    located[groups, np.arange(len(groups))] = 1.0
    same, other, *_ = problem.truth
    return {
        "oracle_fraction": oracle_fraction(located, same.shift),
        "other_oracle_fraction": oracle_fraction(located, other.shift),
        "retrain_oracle_fraction": oracle_fraction(other.shift, same.shift),
    }
