"""``speed``: the cost of answers by DDM, by retraining and by other tools, in trainings of the target."""

from __future__ import annotations

from ddm.baselines import BASELINES
from ddm.baselines.protocol import CannotRun
from ddm.bench import fidelity, timing
from ddm.bench.methods import TITLES, settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.timing import with_cpu_seconds
from ddm.compute.one_thread import one_thread
from ddm.datamodel import DistilledDatamodel

METHODS = ["centroid", "trak", "ekfac", "koh-cg"]

_MANY = 1000
"""Number of questions in the total cost."""

_FEWER, _MORE = 5, 100
"""Each other tool runs once on each number of test samples. The difference in time gives its cost per question."""

_QUESTIONS, _WARM_UP = 50, 200
"""Number of DDM questions to time, and training samples of the warm-up problem of other tools."""


def run(problem: Problem) -> Report:
    """Time each method offline, per question and for a thousand questions, all on one thread, one after another."""
    with one_thread():
        training = timing.training_seconds(problem)
        rows = [*_datamodel_rows(problem), _retraining_row(problem, training)]
        rows += [_baseline_row(problem, method) for method in METHODS]
        accuracy = problem.target.accuracy(problem.data.test)
    for row in rows:
        if "reason" not in row:
            _add_comparison(row, training, len(problem.partition))
    return Report(
        "speed",
        f"Cost of answers: {fidelity.describe_problem(problem)}",
        rows,
        {
            "title": "method",
            "offline": "offline, s",
            "offline in trainings": "offline, trainings",
            "question": "ms per question",
            "beyond": "ms beyond one forward and backward pass",
            "many": f"{_MANY:,} questions, s",
            "times faster": "times faster than retraining",
        },
        notes=[
            "CPU seconds on one thread. A question asks how removing each group changes the prediction for one more "
            f"test sample. Retraining answers all questions with {len(problem.partition)} trainings.",
            f"DDM: medians over {_QUESTIONS} questions after the first. A forward and a backward pass of each sample "
            "are timed in turn with its question. *To first order* is `fast=True`.",
            f"Other tools were run on {_FEWER} and on {_MORE} samples. The difference gives their cost per question; "
            "the rest is offline. 0 means that the difference was too small to measure.",
            *fidelity.failure_notes(rows),
        ],
        reference={
            "test accuracy of the target": accuracy,
            "seconds of one training": training,
            "parameters": problem.target.flat.size,
            "groups": len(problem.partition),
        },
    )


def _add_comparison(row: Row, training: float, groups: int) -> None:
    """Add the cost in trainings and the speed-up over retraining to a row."""
    row["offline in trainings"] = row["offline"] / training
    row["many"] = row["offline"] + _MANY * row["question"] / 1000
    row["times faster"] = groups * training / row["many"]


def _datamodel_rows(problem: Problem) -> list[Row]:
    """DDM with a model per group, and to first order from one Jacobian."""
    problem.target  # noqa: B018 (loads the trained target, so that clustering is timed alone)
    _, clustering = with_cpu_seconds(lambda: problem.partition)
    settings = settings_of(problem, "ddm-response")
    target, samples, partition = problem.target, problem.train, problem.partition
    datamodel, matching = with_cpu_seconds(
        lambda: DistilledDatamodel.fit(target, samples, partition=partition, settings=settings, engine="serial")
    )
    exact, fast = (timing.question_seconds(datamodel, problem.data.test, _QUESTIONS, fast) for fast in (False, True))
    rows = [
        _row("ddm-response", clustering + matching, seconds.whole) | {"beyond": 1000 * seconds.beyond}
        for seconds in (exact, fast)
    ]
    rows[1] |= {"method": "ddm-response-fast", "title": f"{rows[1]['title']}, to first order"}
    return rows


def _retraining_row(problem: Problem, training: float) -> Row:
    return _row("retrain", len(problem.partition) * training, 0.0)


def _baseline_row(problem: Problem, method: str) -> Row:
    """The cost of another tool, from running it on two numbers of samples."""
    try:
        _baseline_seconds(problem.with_changes(limit=_WARM_UP), method, 1)  # warm up: its imports take seconds
        few, many = (_baseline_seconds(problem, method, count) for count in (_FEWER, _MORE))
    except CannotRun as error:
        return {"method": method, "title": TITLES[method], "reason": str(error)}
    question = max(0.0, (many - few) / (2 * (_MORE - _FEWER)))
    return _row(method, max(0.0, few - 2 * _FEWER * question), question)


def _baseline_seconds(problem: Problem, method: str, count: int) -> float:
    """CPU seconds of a method for ``count`` test samples and as many validation samples."""
    request = problem.with_changes(tests=count, validation=count).score_request
    return with_cpu_seconds(lambda: BASELINES[method](request))[1]


def _row(method: str, offline: float, question: float) -> Row:
    return {"method": method, "title": TITLES[method], "offline": offline, "question": 1000 * question}
