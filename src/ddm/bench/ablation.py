"""``ablation`` (the paper's Table 1): how much each part of DDM helps to locate the responsible group."""

from __future__ import annotations

from ddm.bench import fidelity, located
from ddm.bench.methods import TITLES
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem

METHODS = ["random", "predict", "centroid", "ddm-paper", "ddm-match", "ddm", "ddm-response"]

_PAPER = {
    "mnist": {
        "random": "3.3, 0.43, 0.07",
        "predict": "5.5",
        "centroid": "6.2",
        "ddm-sequence": "9.1, 0.55, 0.11",
        "ddm-match": "10.8, 0.73, 0.13",
        "ddm": "10.8, 0.73, 0.13",
    },
    "cifar10": {
        "random": "2.7, 0.34, 0.54",
        "predict": "3.1",
        "centroid": "2.5",
        "ddm-sequence": "5.9, 0.57, 0.78",
        "ddm-match": "5.8, 0.76, 0.81",
        "ddm": "6.8, 0.81, 0.92",
    },
    "cifar100": {
        "random": "2.3, 0.54, 0.8",
        "predict": "3.9",
        "centroid": "3.6",
        "ddm-sequence": "3.5, 0.77, 1.2",
        "ddm-match": "4.8, 0.71, 1.6",
        "ddm": "5.3, 0.88, 1.6",
    },
}
"""The paper's numbers: Dist_1 × 100, Dist_2, Dist_3."""

COLUMNS = {
    "title": "method",
    "dist_1": "Dist_1 × 100",
    "dist_1_gained": "share of the possible gain",
    "dist_2": "Dist_2",
    "dist_2_gained": "share of the possible gain",
    "dist_3": "Dist_3",
    "dist_3_gained": "share of the possible gain",
    "rho": "rho",
    "seconds": "seconds",
}


def run(problem: Problem) -> Report:
    """Locate a group for each test sample by each method, and measure the effect of retraining without it."""
    return Report(
        "ablation",
        f"Locating the responsible group: {fidelity.describe_problem(problem)}",
        [*located.rows_by_method(problem, METHODS), _by_sequence(problem), *located.reference_rows(problem)],
        COLUMNS,
        notes=[
            "Each distance is measured on a model retrained without the located group and averaged over "
            f"{len(problem.test)} test samples; larger is better. Random is the expected value over groups.",
            "Share of the possible gain: 0 is a random group, 1 is the best possible group.",
            "DDM without clustering has its own groups: each class is cut by the order of its samples. Its "
            "distances and its possible gain come from retraining without those groups.",
            "Dist_3 looks for the group that matters least. Most groups hardly matter, so chance is close to the best.",
            "The paper's column (Dist_1 × 100, Dist_2, Dist_3) is from larger networks on all of the data.",
        ],
        reference=fidelity.shared_facts(problem),
        paper=_PAPER.get(problem.setup.data, {}),
    )


def _by_sequence(problem: Problem) -> Row:
    """DDM with each class cut by the order of its samples instead of clustered."""
    cut = problem.with_changes(partition="sequence", unions=1, orders=2)
    (row,) = located.rows_by_method(cut, ["ddm"])
    return row | {"method": "ddm-sequence", "title": TITLES["ddm-sequence"]}
