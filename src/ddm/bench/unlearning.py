"""``unlearning``: DDM's models against exactly unlearned ones: empirical error per group, and KLOM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from ddm.bench import fidelity
from ddm.bench.methods import TITLES, settings_of
from ddm.bench.problem import NOTHING, Problem
from ddm.bench.report import Report, Row
from ddm.counterfactual import Counterfactuals
from ddm.designs import leave_one_out
from ddm.effects import cross_entropy, log_odds
from ddm.exact import group_rows
from ddm.matching import distil
from ddm.plots import LOWERS, RAISES
from ddm.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUPS = 10
"""Groups whose models are compared sample by sample."""


def run(problem: Problem) -> Report:
    """Compare the models without each group, DDM's and retrained ones."""
    exact = [_errors(problem, problem.exact.outputs(_removals(problem), order, _inputs(problem))) for order in (0, 1)]
    chosen = np.linspace(0, len(problem.partition) - 1, min(_GROUPS, len(problem.partition))).astype(int)
    truths = _margins(problem, chosen, "exact")
    rows: list[Row] = []
    drawn = {}
    for name in ("ddm-match", "ddm", "ddm-response"):
        drawn[name] = _errors(problem, _outputs(problem, name))
        outcome = problem.outcomes([name])[name]
        rows.append(
            fidelity.row(problem, name, outcome)
            | _agreement(drawn[name], exact[0])
            | _kloms(problem, chosen, _margins(problem, chosen, name), truths)
        )
    rows.append(
        {
            "method": "nothing",
            "title": "doing nothing (the target itself)",
        }
        | _kloms(problem, chosen, _margins(problem, chosen, "nothing"), truths)
    )
    rows.append(fidelity.retrain_row(problem) | _agreement(exact[1], exact[0]))
    return Report(
        "unlearning",
        f"Unlearning a group, DDM against retraining: {fidelity.described(problem)}",
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
            "unlearnt, over groups, against one retraining; size is the mean rise over the true one.",
            f"KLOM: Kullback–Leibler divergence between the log-odds of unlearned and of retrained models over "
            f"{problem.setup.orders} batch orders, as Gaussians of the spread that both have in common, median over "
            f"samples: those of the unlearned groups ({len(chosen)} of them), and the test samples. Lower is better; 0 "
            "is exact. So few models give a rough figure, and it tells methods apart only beside each other: unlearned "
            "and retrained models share their batch orders.",
        ],
        reference=fidelity.reference(problem),
        figure=_figure(problem, drawn["ddm-response"][0], exact[0][0]),
    )


def klom(found: np.ndarray, true: np.ndarray) -> float:
    """Median over samples of (μ − μ̂)² / 2σ² for log-odds of S models each ``(S, N)``, σ² pooled over both."""
    pooled = (found.var(0, ddof=1) + true.var(0, ddof=1)) / 2
    return float(np.median((found.mean(0) - true.mean(0)) ** 2 / (2 * np.maximum(pooled, 1e-12))))


def _kloms(problem: Problem, chosen: np.ndarray, found: np.ndarray, true: np.ndarray) -> Row:
    """KLOM of log-odds ``(S, N)`` as ``_margins`` gives them, on the groups' own samples and on test samples."""
    own = np.concatenate([np.arange(size + len(problem.test)) < size for size in problem.partition.sizes[chosen]])
    return {"klom_group": klom(found[:, own], true[:, own]), "klom_test": klom(found[:, ~own], true[:, ~own])}


def _removals(problem: Problem) -> list[np.ndarray]:
    return [NOTHING, *group_rows(problem.partition, leave_one_out(len(problem.partition)))]


def _inputs(problem: Problem) -> Tensor:
    return torch.cat([problem.train.batch()[0], problem.test.batch()[0]])


def _outputs(problem: Problem, method: str) -> Tensor:
    """Logits ``(1 + K, n + m, L)`` with all groups and without each, as DDM's models give them."""
    datamodel = problem.datamodel(settings_of(problem, method))
    x = _inputs(problem)
    return torch.cat([problem.target.outputs(x)[None], datamodel.outputs(x)])


def _errors(problem: Problem, outputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rise of the mean loss on each group's own samples, and on the test samples, without that group: ``(K,)`` each."""
    n = len(problem.train)
    labels = torch.cat([problem.train.labels, problem.test.labels])
    change = (cross_entropy(outputs[1:], labels) - cross_entropy(outputs[0], labels)).numpy()
    own = [change[k, problem.partition.rows(k)].mean() for k in range(len(problem.partition))]
    return np.array(own), change[:, n:].mean(1)


def _agreement(found: tuple[np.ndarray, np.ndarray], true: tuple[np.ndarray, np.ndarray]) -> Row:
    return {
        "forgotten_pearson": float(pearsonr(found[0], true[0])[0]),
        "forgotten_spearman": float(spearmanr(found[0], true[0])[0]),
        "forgotten_ratio": float(np.abs(found[0]).mean() / max(np.abs(true[0]).mean(), 1e-12)),
        "test_spearman": float(spearmanr(found[1], true[1])[0]),
    }


def _margins(problem: Problem, chosen: np.ndarray, kind: str) -> np.ndarray:
    """Log-odds ``(S, N)`` of the chosen groups' samples and the test samples, in models of S batch orders."""
    rows = problem.rows_of(chosen)
    masks = leave_one_out(len(problem.partition))[chosen]
    samples = [problem.partition.rows(k) for k in chosen]
    x = torch.cat([problem.train.batch(rows)[0], problem.test.batch()[0]])
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


def _unlearned(problem: Problem, order: int, method: str, masks: np.ndarray, x: Tensor) -> Tensor:
    """Logits ``(G, N, L)`` of DDM's models without each group, for a target of another batch order."""
    recipe = replace(problem.setup.recipe, seed=problem.setup.recipe.seed + order)
    folder = problem.work / f"target-{problem.setup.training_key()}"
    target = problem.target
    if order:
        target = train(problem.network, problem.train, recipe, directory=folder / f"trajectory-{order}")
    if method == "nothing":
        return target.outputs(x).expand(len(masks), -1, -1)
    settings = settings_of(problem, method)
    parts = problem.work / f"parts-{replace(problem.setup, settings=settings).key()}-order-{order}"
    synset, _ = distil(target, problem.train, replace(problem.partition, parents=None), settings, parts)
    return Counterfactuals(target, synset).outputs(masks, x)


def _figure(problem: Problem, found: np.ndarray, true: np.ndarray) -> Figure:
    """Rise of the loss on each group, DDM upwards and retraining downwards, as the paper draws it."""
    from matplotlib.figure import Figure

    scale = np.abs(found).max() / max(np.abs(true).max(), 1e-12)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    positions = np.arange(len(found))
    axes.bar(positions, found, color=RAISES, label=TITLES["ddm-response"])
    axes.bar(positions, -scale * true, color=LOWERS, label=f"retraining, flipped and scaled by {scale:.2g}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("group that is unlearnt")
    axes.set_ylabel("rise of the mean loss\non the group itself")
    axes.legend(frameon=False, fontsize=8)
    step = max(1, len(found) // 25)
    axes.set_xticks(positions[::step], problem.partition.names[::step], rotation=90, fontsize=7)
    return figure
