"""``noise`` (the paper's supplement): which methods find noisy groups, and does removing them help?"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from ddm.bench import fidelity
from ddm.bench.output import Report
from ddm.bench.problem import Problem
from ddm.bench.removal import rows_by_method

METHODS = ["random", "size", "koh-cg", "arnoldi", "tracin", "trak", "ekfac", "ddm-match", "ddm", "ddm-response"]
SHARES = {"10 %": 0.1, "20 %": 0.2, "30 %": 0.3, "40 %": 0.4}
NORM = 0.1

_PAPER = {"random": "78.4, 70.5, 68.8, 61.3, 55.7", "ddm": "78.4, 82.0, 79.3, 73.6, 70.1"}


def run(problem: Problem) -> Report:
    """Add noise to a fifth of the groups, remove data in the order of each method, and retrain."""
    noisy = problem.with_changes(noise=NORM, unions=1, orders=2)
    is_noisy = noisy.noisy_groups
    rows = rows_by_method(noisy, METHODS, SHARES, noisy.setup.orders)
    for row in rows:
        row["auc"] = detection_auc(is_noisy, np.array(row["effects"])) if "effects" in row else None
    clean = problem.target.accuracy(problem.data.test)
    return Report(
        "noise",
        f"Test accuracy in % after removing data; a fifth of the groups is noisy: {fidelity.describe_problem(noisy)}",
        rows,
        {"title": "method", **{column: column for column in ("0 %", *SHARES)}, "auc": "detection AUC"},
        notes=[
            f"Every image of {int(is_noisy.sum())} of {len(is_noisy)} groups, a fifth of the data, has Gaussian noise "
            f"with a root mean square of {NORM} per pixel, on a scale of 0 to 1. The groups are those of the clean "
            "data, so a group is either noisy as a whole or clean.",
            f"A target trained on clean data classifies {100 * clean:.1f} % of the test images correctly.",
            "Detection AUC: how well the predicted effect on the validation loss tells noisy groups from clean ones; "
            "0.5 is chance.",
            "The paper's column (0, 10, 20, 30, 40 %) is from another network. The paper does not say how it measures "
            "the noise.",
            *fidelity.failure_notes(rows),
        ],
        reference=fidelity.shared_facts(noisy) | {"test accuracy with clean data": clean},
        paper=_PAPER,
    )


def detection_auc(is_noisy: np.ndarray, effect: np.ndarray) -> float:
    """Probability that removing a noisy group lowers the validation loss more than removing a clean one."""
    return float(roc_auc_score(is_noisy, -effect))
