"""``noise`` (the paper's supplement): noise on a fifth of the data; who finds it, and does removing it help?"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from ddm.bench import fidelity
from ddm.bench.problem import Problem
from ddm.bench.removal import rows_by_method
from ddm.bench.report import Report

METHODS = ["random", "size", "koh-cg", "arnoldi", "tracin", "trak", "ekfac", "ddm-match", "ddm", "ddm-response"]
SHARES = {"10 %": 0.1, "20 %": 0.2, "30 %": 0.3, "40 %": 0.4}
NORM = 0.1

_PAPER = {"random": "78.4, 70.5, 68.8, 61.3, 55.7", "ddm": "78.4, 82.0, 79.3, 73.6, 70.1"}


def run(problem: Problem) -> Report:
    """Put noise on a fifth of the groups, remove data by each method and retrain."""
    noisy = problem.changed(noise=NORM, unions=1, orders=2)
    is_noisy = noisy.noisy_groups
    rows = rows_by_method(noisy, METHODS, SHARES, noisy.setup.orders)
    for row in rows:
        row["auc"] = _auc(is_noisy, np.array(row["effects"])) if "effects" in row else None
    clean = problem.target.accuracy(problem.data.test)
    return Report(
        "noise",
        f"Test accuracy in % after noise on a fifth of the groups: {fidelity.described(noisy)}",
        rows,
        {"title": "method", **{column: column for column in ("0 %", *SHARES)}, "auc": "detection AUC"},
        notes=[
            f"Gaussian noise of norm {NORM} a pixel (root mean square, on a scale of 0 to 1) on every image of "
            f"{int(is_noisy.sum())} of {len(is_noisy)} groups, a fifth of the data. The groups are those of the clean "
            "data, so that a group is noisy as a whole or not at all.",
            f"With clean data the target classifies {100 * clean:.1f} % of the test images.",
            "Detection AUC: how well the predicted effect on the validation loss tells noisy groups from clean ones; "
            "0.5 is chance.",
            "The paper's column (0, 10, 20, 30, 40 %) is of another network and does not say how it measures the norm.",
            *fidelity.reasons(rows),
        ],
        reference=fidelity.reference(noisy) | {"test accuracy with clean data": clean},
        paper=_PAPER,
    )


def _auc(is_noisy: np.ndarray, effect: np.ndarray) -> float:
    """Probability that a noisy group's removal lowers the validation loss more than a clean one's."""
    return float(roc_auc_score(is_noisy, -effect))
