"""``noise`` (the paper's supplement): noise on a fifth of the data; who finds it, and does removing it help?"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from ddm.bench import fidelity
from ddm.bench.problem import Problem
from ddm.bench.removal import accuracies, first_rows, least_useful, random_rows
from ddm.bench.report import Report, Row

METHODS = ["random", "size", "koh-cg", "arnoldi", "tracin", "trak", "ekfac", "ddm-match", "ddm"]
SHARES = {"10 %": 0.1, "20 %": 0.2, "30 %": 0.3, "40 %": 0.4}
NORM = 0.1

_PAPER = {"random": "78.4, 70.5, 68.8, 61.3, 55.7", "ddm": "78.4, 82.0, 79.3, 73.6, 70.1"}


def run(problem: Problem) -> Report:
    """Put noise on a fifth of the groups, remove data by each method and retrain."""
    noisy = problem.changed(noise=NORM, unions=1, orders=2)
    is_noisy = noisy.noisy_groups
    found = noisy.outcomes(METHODS)
    effects = {name: one.effects.validation for name, one in found.items() if one.effects is not None}
    effects["retrain"] = np.mean([true.validation for true in noisy.truth], axis=0)
    removals = {
        name: {column: first_rows(noisy, least_useful(effect), share) for column, share in SHARES.items()}
        for name, effect in effects.items()
    }
    removals["random-samples"] = {column: random_rows(noisy, share) for column, share in SHARES.items()}
    measured = accuracies(noisy, removals, range(noisy.setup.orders))
    rows: list[Row] = []
    for name, outcome in found.items():
        facts = fidelity.row(noisy, name, outcome) | measured.get(name, {})
        rows.append(facts | ({"auc": _auc(is_noisy, effects[name])} if name in effects else {}))
    rows[0]["title"] = "random groups"
    rows.insert(1, {"method": "random-samples", "title": "random samples", "auc": 0.5} | measured["random-samples"])
    last = fidelity.retrain_row(noisy) | measured["retrain"] | {"auc": _auc(is_noisy, effects["retrain"])}
    rows.append(last | {"title": "retraining without each group"})
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
            *fidelity.reasons(found),
        ],
        reference=fidelity.reference(noisy) | {"test accuracy with clean data": clean},
        paper=_PAPER,
    )


def _auc(is_noisy: np.ndarray, effect: np.ndarray) -> float:
    """Probability that a noisy group's removal lowers the validation loss more than a clean one's."""
    return float(roc_auc_score(is_noisy, -effect))
