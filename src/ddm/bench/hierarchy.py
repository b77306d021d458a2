"""``hierarchy``: class first and then cluster, against searching every group: fine-tunings, seconds, agreement."""

from __future__ import annotations

import time

import numpy as np

from ddm.bench import fidelity
from ddm.bench.methods import settings_of
from ddm.bench.problem import Problem
from ddm.bench.report import Report, Row
from ddm.figures import oracle_fraction


def run(problem: Problem) -> Report:
    """Trace every test sample both ways."""
    datamodel = problem.datamodel(settings_of(problem, "ddm-response"))
    datamodel.trace(problem.test[0])
    datamodel.trace(problem.test[0], full=True)  # both levels' directions are kept from now on
    rows: list[Row] = []
    found: dict[bool, np.ndarray] = {}
    for full in (True, False):
        groups, models, seconds = [], [], []
        for index in range(len(problem.test)):
            started = time.perf_counter()
            trace = datamodel.trace(problem.test[index], full=full)
            seconds.append(time.perf_counter() - started)
            groups.append(problem.partition.index(trace.group))
            models.append(trace.models)
        found[full] = np.array(groups)
        rows.append(
            {
                "method": "full" if full else "hierarchical",
                "title": "every group" if full else "class, then cluster",
                "fine_tunings": float(np.mean(models)),
                "query_ms": 1000 * float(np.median(seconds)),
                "seconds": float(np.sum(seconds)),
                "trainings": float(np.sum(seconds)) / problem.training_seconds,
                "agreement": float((found[full] == found[True]).mean()),
                "same_class": _same_class(problem, found[full], found[True]),
                **_located(problem, found[full]),
            }
        )
    return Report(
        "hierarchy",
        f"Searching class first and then cluster: {fidelity.described(problem)}",
        rows,
        {
            "title": "search",
            "fine_tunings": "fine-tunings",
            "query_ms": "ms a question",
            "agreement": "same group as the full search",
            "same_class": "same class",
            "oracle_fraction": "oracle_fraction",
        },
        notes=[
            f"{len(problem.test)} test samples, each traced by the prediction shift (Dist_1); ms is the median.",
            "The paper states 5 times fewer fine-tunings with 10 × 10 groups and 10 times fewer with 100 × 10; with "
            "directions kept, a fine-tuning is one addition, and time goes into the forward passes.",
        ],
        reference=fidelity.reference(problem),
    )


def _same_class(problem: Problem, groups: np.ndarray, others: np.ndarray) -> float:
    parents = np.asarray(problem.partition.parents)
    return float((parents[groups] == parents[others]).mean())


def _located(problem: Problem, groups: np.ndarray) -> Row:
    """oracle_fraction of the located groups ``(m,)``, by run, beside another retraining's."""
    found = np.zeros((len(problem.partition), len(groups)))
    found[groups, np.arange(len(groups))] = 1.0
    same, other, *_ = problem.truth
    return {
        "oracle_fraction": oracle_fraction(found, same.shift),
        "other_oracle_fraction": oracle_fraction(found, other.shift),
        "retrain_oracle_fraction": oracle_fraction(other.shift, same.shift),
    }
