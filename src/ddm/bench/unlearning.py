"""``unlearning``: DDM's models without a group, compared with retrained ones by losses and by KLOM.

KLOM is the KL divergence of margins (log-odds) between unlearned and retrained models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from ddm.bench import fidelity
from ddm.bench.methods import TITLES, settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import NO_ROWS, Problem
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.designs import leave_one_out
from ddm.data.inputs import X, join
from ddm.distil import distil
from ddm.plots import ACCENT, NEUTRAL
from ddm.truth.effects import cross_entropy, log_odds
from ddm.truth.retraining import group_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUPS = 10
"""Number of groups whose models are compared sample by sample."""


def run(problem: Problem) -> Report:
    """Compare DDM's models without each group with retrained ones."""
    exact = [
        _loss_rises(problem, problem.exact.outputs(_removals(problem), order, _inputs(problem))) for order in (0, 1)
    ]
    chosen = np.linspace(0, len(problem.partition) - 1, min(_GROUPS, len(problem.partition))).astype(int)
    truths = _margins(problem, chosen, "exact")
    rows: list[Row] = []
    rises = {}
    for name in ("ddm-match", "ddm", "ddm-response"):
        rises[name] = _loss_rises(problem, _outputs(problem, name))
        outcome = problem.outcomes([name])[name]
        rows.append(
            fidelity.method_row(problem, name, outcome)
            | _agreement(rises[name], exact[0])
            | _kloms(problem, chosen, _margins(problem, chosen, name), truths)
        )
    nothing: Row = {"method": "nothing", "title": "doing nothing (the target itself)"}
    rows.append(nothing | _kloms(problem, chosen, _margins(problem, chosen, "nothing"), truths))
    rows.append(fidelity.retrain_row(problem) | _agreement(exact[1], exact[0]))
    return Report(
        "unlearning",
        f"Unlearning a group by DDM, compared with retraining: {fidelity.describe_problem(problem)}",
        rows,
        {
            "title": "method",
            "forgotten_pearson": "loss on the group itself: Pearson",
            "forgotten_spearman": "Spearman",
            "forgotten_ratio": "size",
            "test_spearman": "loss on test data: Spearman",
            "klom_group": "KLOM on the group itself",
            "klom_test": "KLOM on test data",
            "seconds": "seconds",
        },
        notes=[
            "Loss on the group itself: how much the mean loss on a group's own samples rises when the group is "
            "unlearned. Pearson and Spearman correlate the rises of all groups with those of one retraining. Size is "
            "the mean absolute rise over that of the retraining.",
            "KLOM: KL divergence between the log-odds of unlearned and of retrained models over "
            f"{problem.setup.orders} batch orders. Both are taken as Gaussians with a common variance. The median over "
            f"samples is shown, for samples of {len(chosen)} unlearned groups and for test samples. Lower is better; 0 "
            "is exact. With so few models KLOM is rough. Use it only to compare methods, because unlearned and "
            "retrained models share their batch orders.",
        ],
        reference=fidelity.shared_facts(problem),
        figure=_figure(problem, rises["ddm-response"][0], exact[0][0]),
    )


def klom(unlearned: np.ndarray, true: np.ndarray) -> float:
    """Median over samples of (μ − μ̂)² / 2σ² for log-odds of S models each ``(S, N)``; σ² is pooled over both."""
    pooled = (unlearned.var(0, ddof=1) + true.var(0, ddof=1)) / 2
    return float(np.median((unlearned.mean(0) - true.mean(0)) ** 2 / (2 * np.maximum(pooled, 1e-12))))


def _kloms(problem: Problem, chosen: np.ndarray, unlearned: np.ndarray, true: np.ndarray) -> Row:
    """KLOM of log-odds ``(S, N)`` from ``_margins``, on the groups' own samples and on test samples."""
    own = np.concatenate([np.arange(size + len(problem.test)) < size for size in problem.partition.sizes[chosen]])
    return {"klom_group": klom(unlearned[:, own], true[:, own]), "klom_test": klom(unlearned[:, ~own], true[:, ~own])}


def _removals(problem: Problem) -> list[np.ndarray]:
    return [NO_ROWS, *problem.single_groups]


def _inputs(problem: Problem) -> X:
    return join([problem.train.batch()[0], problem.test.batch()[0]])


def _outputs(problem: Problem, method: str) -> Tensor:
    """Logits ``(1 + K, n + m, L)`` of DDM's models: with all groups, and without each group."""
    datamodel = problem.datamodel(settings_of(problem, method))
    x = _inputs(problem)
    return torch.cat([problem.target.outputs(x)[None], datamodel.outputs(x)])


def _loss_rises(problem: Problem, outputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """How much removing each group raises the mean loss on its own samples and on the test samples, ``(K,)`` each."""
    n = len(problem.train)
    labels = torch.cat([problem.train.labels, problem.test.labels])
    change = (cross_entropy(outputs[1:], labels) - cross_entropy(outputs[0], labels)).numpy()
    own = [change[k, problem.partition.rows(k)].mean() for k in range(len(problem.partition))]
    return np.array(own), change[:, n:].mean(1)


def _agreement(unlearned: tuple[np.ndarray, np.ndarray], true: tuple[np.ndarray, np.ndarray]) -> Row:
    return {
        "forgotten_pearson": float(pearsonr(unlearned[0], true[0])[0]),
        "forgotten_spearman": float(spearmanr(unlearned[0], true[0])[0]),
        "forgotten_ratio": float(np.abs(unlearned[0]).mean() / max(np.abs(true[0]).mean(), 1e-12)),
        "test_spearman": float(spearmanr(unlearned[1], true[1])[0]),
    }


def _margins(problem: Problem, chosen: np.ndarray, kind: str) -> np.ndarray:
    """Log-odds ``(S, N)`` of the chosen groups' samples and of the test samples, in models of S batch orders.

    kind: exact (retrained models), nothing (the target itself) or a variant of DDM
    """
    rows = problem.rows_of(chosen)
    masks = leave_one_out(len(problem.partition))[chosen]
    samples = [problem.partition.rows(k) for k in chosen]
    x = join([problem.train.batch(rows)[0], problem.test.batch()[0]])
    labels = torch.cat([problem.train.labels[rows], problem.test.labels])
    test = np.arange(len(rows), len(x))
    table = []
    for order in range(problem.setup.orders):
        if kind == "exact":
            outputs = problem.exact.outputs(group_rows(problem.partition, masks), order, x)
        else:
            outputs = _unlearned(problem, order, kind, masks, x)
        odds = log_odds(outputs, labels).numpy()
        parts = [odds[i, np.concatenate([np.searchsorted(rows, own), test])] for i, own in enumerate(samples)]
        table.append(np.concatenate(parts))
    return np.array(table)


def _unlearned(problem: Problem, order: int, method: str, masks: np.ndarray, x: X) -> Tensor:
    """Logits ``(G, N, L)`` of DDM's models without each group, for a target trained with a batch order."""
    target = problem.target_with_order(order)
    if method == "nothing":
        return target.outputs(x).expand(len(masks), -1, -1)
    settings = settings_of(problem, method)
    folder = problem.distillation_folder(settings)
    folder = folder.with_name(f"{folder.name}-order-{order}")
    distilled = distil(target, problem.train, replace(problem.partition, parents=None), settings, folder)
    return Counterfactuals(target, distilled.made_synset).outputs(masks, x)


def _figure(problem: Problem, unlearned: np.ndarray, true: np.ndarray) -> Figure:
    """Rise of the loss on each group: DDM upwards and retraining downwards, as in the paper."""
    from matplotlib.figure import Figure

    scale = np.abs(unlearned).max() / max(np.abs(true).max(), 1e-12)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    positions = np.arange(len(unlearned))
    axes.bar(positions, unlearned, color=ACCENT, label=TITLES["ddm-response"])
    axes.bar(positions, -scale * true, color=NEUTRAL, label=f"retraining, flipped and scaled by {scale:.2g}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("unlearned group")
    axes.set_ylabel("rise of the mean loss\non the group itself")
    axes.legend(frameon=False, fontsize=8)
    step = max(1, len(unlearned) // 25)
    axes.set_xticks(positions[::step], problem.partition.names[::step], rotation=90, fontsize=7)
    return figure
