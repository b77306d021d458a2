"""``useless`` (the paper's Table 3): test accuracy after removing the data that each method finds least useful."""

from __future__ import annotations

from collections.abc import Sequence

from ddm.bench import fidelity
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.removal import rows_by_method

METHODS = ["random", "koh-cg", "fastif", "arnoldi", "tracin", "trak", "ekfac", "ddm-match", "ddm", "ddm-response"]
SHARES = {"1 %": 0.01, "10 %": 0.1, "20 %": 0.2, "50 %": 0.5}

_ORDERS = 2
"""Number of batch orders over which accuracies are averaged."""

_PAPER = {
    "random": "95.7, 95.8, 92.8, 74.6, 65.9",
    "koh-cg": "95.7, 95.9, 93.7, 81.5, 74.3",
    "fastif": "95.7, 95.5, 94.1, 79.6, 74.0",
    "arnoldi": "95.7, 96.0, 95.2, 82.9, 73.3",
    "ddm": "95.7, 96.2, 95.9, 85.4, 79.3",
}


def run(problem: Problem) -> Report:
    """Retrain without the 1, 10, 20 and 50 % of the data that each method ranks as least useful."""
    rows = rows_by_method(problem, METHODS, SHARES, _ORDERS)
    return Report(
        "useless",
        f"Test accuracy in % after removing the least useful data: {fidelity.describe_problem(problem)}",
        rows,
        {"title": "method", **{column: column for column in ("0 %", *SHARES)}, "rho_global": "rho_global"},
        notes=[
            f"Each accuracy is the mean of {_ORDERS} retrainings with different batch orders on "
            f"{len(problem.data.test):,} test images. Groups are removed in the order of their predicted effect on "
            "the validation loss: first the group whose removal lowers it most. The last group is only removed in "
            "part, to reach the exact count.",
            "The standard deviations over batch orders are in the JSON; the largest is "
            f"{_largest_spread(rows):.2f} points.",
            f"The true effect is the mean over {problem.setup.orders} batch orders, at K trainings each.",
            "The paper's column is from MNIST with all data (0, 1, 10, 20, 50 %).",
            *fidelity.failure_notes(rows),
        ],
        reference=fidelity.shared_facts(problem),
        paper=_PAPER if problem.setup.data == "mnist" else {},
    )


def _largest_spread(rows: Sequence[Row]) -> float:
    """The largest standard deviation of any row's accuracies, in percentage points."""
    return max(float(value) for row in rows for key, value in row.items() if key.endswith("spread"))
