"""``speed``: what answers cost in one run, in trainings of the target: ours, retraining, and other tools' influence."""

from __future__ import annotations

from ddm import engine
from ddm.baselines import BASELINES
from ddm.baselines.protocol import CannotRun
from ddm.bench import fidelity, timing
from ddm.bench.methods import TITLES, settings_of
from ddm.bench.problem import Problem
from ddm.bench.report import Report, Row
from ddm.bench.timing import timed
from ddm.datamodel import DistilledDatamodel
from ddm.matching import distil

METHODS = ["centroid", "trak", "ekfac", "koh-cg"]

_MANY = 1000
"""Test samples whose answers are counted."""

_FEWER, _MORE = 5, 100
"""Test samples that other tools are asked about, twice: what grows between is the cost of a question."""

_QUESTIONS, _WARM = 50, 200
"""Questions to us that are timed, and samples of the problem that other tools are tried on first."""


def run(problem: Problem) -> Report:
    """Offline, a question, and a thousand of them, by each method; everything on one thread, one after another."""
    with engine.one_thread():
        training = timing.training(problem)
        rows = [*_ours(problem), _retraining(problem, training)]
        rows += [_other(problem, method) for method in METHODS]
        target = problem.target.accuracy(problem.data.test)
    for row in rows:
        if "reason" not in row:
            _compared(row, training, len(problem.partition))
    return Report(
        "speed",
        f"What answers cost: {fidelity.described(problem)}",
        rows,
        {
            "title": "method",
            "offline": "offline, s",
            "offline in trainings": "offline, trainings",
            "question": "ms a question",
            "beyond": "beyond its own pass",
            "many": f"{_MANY:,} questions, s",
            "times faster": "times faster than retraining",
        },
        notes=[
            "Seconds of the processor on one thread. A question is the effect of removing each group on the prediction "
            f"of one more test sample. Retraining answers all of them at once: {len(problem.partition)} trainings.",
            f"Ours is the median of {_QUESTIONS} questions after the first, and of what each takes beyond its sample's "
            "own pass forward and back, timed in turn with it; to first order is `fast=True`.",
            f"Other tools were asked about {_FEWER} and about {_MORE} samples: the difference is their cost of a "
            "question, the rest is offline. 0 is a difference too small to be told.",
            *fidelity.reasons(rows),
        ],
        reference={
            "test accuracy of the target": target,
            "seconds of one training": training,
            "parameters": problem.target.flat.size,
            "groups": len(problem.partition),
        },
    )


def _compared(row: Row, training: float, groups: int) -> None:
    """Adds what a row is in trainings, and against retraining."""
    row["offline in trainings"] = row["offline"] / training
    row["many"] = row["offline"] + _MANY * row["question"] / 1000
    row["times faster"] = groups * training / row["many"]


def _ours(problem: Problem) -> list[Row]:
    """Models one by one, and to first order from one Jacobian."""
    problem.target  # noqa: B018 (is trained already, and read here)
    _, clustering = timed(lambda: problem.partition)
    settings = settings_of(problem, "ddm-response")
    target, samples, partition = problem.target, problem.train, problem.partition
    (synset, upper), matching = timed(lambda: distil(target, samples, partition, settings, engine="serial"))
    datamodel = DistilledDatamodel(target, partition, synset, upper, settings, samples.fingerprint())
    exact, fast = (timing.question(datamodel, problem.data.test, _QUESTIONS, fast) for fast in (False, True))
    rows = [
        _row("ddm-response", clustering + matching, asked.whole) | {"beyond": 1000 * asked.beyond}
        for asked in (exact, fast)
    ]
    rows[1] |= {"method": "ddm-response-fast", "title": f"{rows[1]['title']}, to first order"}
    return rows


def _retraining(problem: Problem, training: float) -> Row:
    return _row("retrain", len(problem.partition) * training, 0.0)


def _other(problem: Problem, method: str) -> Row:
    """Another tool's cost, from asking it twice."""
    try:
        _asked(problem.changed(limit=_WARM), method, 1)  # what it imports takes seconds
        few, many = (_asked(problem, method, count) for count in (_FEWER, _MORE))
    except CannotRun as error:
        return {"method": method, "title": TITLES[method], "reason": str(error)}
    question = max(0.0, (many - few) / (2 * (_MORE - _FEWER)))
    return _row(method, max(0.0, few - 2 * _FEWER * question), question)


def _asked(problem: Problem, method: str, count: int) -> float:
    """Seconds of a method for ``count`` test and as many validation samples."""
    fewer = problem.changed(tests=count, validation=count)
    question = fewer.question
    return timed(lambda: BASELINES[method](question))[1]


def _row(method: str, offline: float, question: float) -> Row:
    return {"method": method, "title": TITLES[method], "offline": offline, "question": 1000 * question}
