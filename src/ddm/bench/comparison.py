"""``comparison`` (the paper's Table 2): Dist_1 against influence functions and what people use today, with the cost."""

from __future__ import annotations

from ddm.bench import fidelity, located
from ddm.bench.problem import Problem
from ddm.bench.report import Report

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
    "oracle_fraction": "of what can be gained",
    "oracle_fraction_low": "from",
    "oracle_fraction_high": "to",
    "rho": "rho",
    "seconds": "seconds",
    "trainings": "in trainings",
    "bytes": "bytes",
}


def run(problem: Problem) -> Report:
    """Locate a group for each test sample by each method, and measure what retraining without it does."""
    rows = located.rows_by_method(problem, METHODS) + located.reference_rows(problem)
    return Report(
        "comparison",
        f"Dist_1 at the located group: {fidelity.described(problem)}",
        rows,
        COLUMNS,
        notes=[
            f"Dist_1 of the model that was really retrained without the located group, mean over {len(problem.test)} "
            "test samples; larger is better. From, to: 95 % bootstrap interval.",
            "Seconds are for all test samples, what is done once included, on one thread; in trainings of the target "
            "measured in the same run.",
            "The paper's column is of larger networks on all of the data.",
            *fidelity.reasons(rows),
        ],
        reference=fidelity.reference(problem),
        paper=_PAPER.get(problem.setup.data, {}),
    )
