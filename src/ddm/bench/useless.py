"""``useless`` (the paper's Table 3): remove the least useful data by each method, retrain, and measure the accuracy."""

from __future__ import annotations

from ddm.bench import fidelity
from ddm.bench.problem import Problem
from ddm.bench.removal import rows_by_method
from ddm.bench.report import Report

METHODS = ["random", "koh-cg", "fastif", "arnoldi", "tracin", "trak", "ekfac", "ddm-match", "ddm", "ddm-response"]
SHARES = {"1 %": 0.01, "10 %": 0.1, "20 %": 0.2, "50 %": 0.5}

_ORDERS = 2
"""Batch orders that accuracies are averaged over."""

_PAPER = {
    "random": "95.7, 95.8, 92.8, 74.6, 65.9",
    "koh-cg": "95.7, 95.9, 93.7, 81.5, 74.3",
    "fastif": "95.7, 95.5, 94.1, 79.6, 74.0",
    "arnoldi": "95.7, 96.0, 95.2, 82.9, 73.3",
    "ddm": "95.7, 96.2, 95.9, 85.4, 79.3",
}


def run(problem: Problem) -> Report:
    """Retrain without the 1, 10, 20 and 50 % that each method finds least useful for the validation loss."""
    rows = rows_by_method(problem, METHODS, SHARES, _ORDERS)
    return Report(
        "useless",
        f"Test accuracy in % after removing the least useful data: {fidelity.described(problem)}",
        rows,
        {"title": "method", **{column: column for column in ("0 %", *SHARES)}, "rho_global": "rho_global"},
        notes=[
            f"Each accuracy is the mean of {_ORDERS} retrainings with different batch orders on "
            f"{len(problem.data.test):,} test images. Groups go in the order of their predicted effect on the "
            "validation loss, those whose removal lowers it most first; the last group is cut to the exact count.",
            "Their spread (standard deviation) is in the JSON; the largest here is "
            f"{max(v for row in rows for k, v in row.items() if k.endswith('spread')):.2f} points.",
            f"The true effect is the mean over {problem.setup.orders} batch orders: K trainings each.",
            "The paper's column is of MNIST with all data (0, 1, 10, 20, 50 %).",
            *fidelity.reasons(rows),
        ],
        reference=fidelity.reference(problem),
        paper=_PAPER if problem.setup.data == "mnist" else {},
    )
