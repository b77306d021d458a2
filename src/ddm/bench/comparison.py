"""``comparison`` (the paper's Table 2): Dist_1 and cost of DDM, influence functions and today's libraries."""

from __future__ import annotations

from ddm.bench import fidelity, located
from ddm.bench.output import Report
from ddm.bench.problem import Problem

METHODS = [
    "random", "koh-cg", "koh-lissa", "fastif", "arnoldi", "tracin", "trak", "ekfac",
    "ddm-paper", "ddm-match", "ddm", "ddm-response",
]  # fmt: skip

_PAPER = {
    "mnist": {"random": 3.3, "koh-cg": 10.0, "fastif": 9.8, "arnoldi": 10.4, "ddm": 10.8},
    "cifar10": {"random": 2.7, "koh-cg": 5.6, "fastif": 6.5, "arnoldi": 6.5, "ddm": 6.8},
    "cifar100": {"random": 2.3, "koh-cg": 2.6, "fastif": 2.4, "arnoldi": 3.9, "ddm": 5.3},
}

COLUMNS = {
    "title": "method",
    "dist_1": "Dist_1 × 100",
    "oracle_fraction": "share of the possible gain",
    "oracle_fraction_low": "lower bound",
    "oracle_fraction_high": "upper bound",
    "rho": "rho",
    "seconds": "seconds",
    "trainings": "cost in trainings",
    "bytes": "bytes",
}


def run(problem: Problem) -> Report:
    """Locate a group for each test sample by each method, and measure the effect of retraining without it."""
    rows = located.rows_by_method(problem, METHODS) + located.reference_rows(problem)
    return Report(
        "comparison",
        f"Dist_1 at the located group: {fidelity.describe_problem(problem)}",
        rows,
        COLUMNS,
        notes=[
            f"Dist_1 of a model retrained without the located group, averaged over {len(problem.test)} test samples; "
            "larger is better. Share of the possible gain: 0 is a random group, 1 is the best possible group; the "
            "bounds are its 95 % bootstrap interval.",
            "Seconds are for all test samples on one thread and include work that is done only once. Cost in trainings "
            "divides them by the seconds of one training of the target in the same run.",
            "The paper's column is from larger networks on all of the data.",
            *fidelity.failure_notes(rows),
        ],
        reference=fidelity.shared_facts(problem),
        paper=_PAPER.get(problem.setup.data, {}),
    )
