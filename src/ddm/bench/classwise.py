"""``architectures`` and ``initialisations``: do different networks attribute a batch to the same classes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.bench.fidelity import describe_data
from ddm.bench.matching import cached_rows
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import NO_ROWS, Problem
from ddm.bench.setup import preset
from ddm.data.samples import Samples
from ddm.training.recipe import Recipe
from ddm.truth.effects import shift
from ddm.truth.figures import mean_spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL, MOST_SAMPLES = 2, 64
"""The label of the batch to explain, and its maximum size."""

NETWORKS = {"convnet": "ConvNet", "alexnet": "AlexNet", "resnet18ap": "ResNet18AP", "simplevit": "SimpleViT"}
INITIALISATIONS = {"kaiming": "Kaiming (ini-1)", "normal": "normal (ini-2)", "xavier": "Xavier (ini-3)"}

_RECIPES: dict[str, dict[str, float | int]] = {
    "alexnet": {"epochs": 6, "lr": 0.02, "batch_size": 32},
    "resnet18ap": {"epochs": 4, "lr": 0.05, "batch_size": 64},
    "simplevit": {"epochs": 8, "lr": 0.02, "batch_size": 32, "momentum": 0.9},
}
"""Recipes that let small networks learn from little data, chosen by a few trainings on MNIST."""

_CHECKPOINTS = 15
"""Number of checkpoints, because these trainings have few epochs."""

_BARS, _MARKERS = "#0072B2", "#D55E00"


def architectures(problem: Problem) -> Report:
    """Class-wise weights for a batch of one label, by architecture."""
    return _report(
        problem,
        "architectures",
        NETWORKS,
        [
            "Trained for: "
            + "; ".join(_describe_training(problem, name) for name in NETWORKS)
            + ". AlexNet diverges at 0.1.",
            "The paper reports that on MNIST all architectures attribute the batch to label 2, with similar weights. "
            "Its networks are larger.",
        ],
    )


def initialisations(problem: Problem) -> Report:
    """Class-wise weights for a batch of one label, by kind of initial weights."""
    return _report(
        problem,
        "initialisations",
        INITIALISATIONS,
        ["The paper reports similar weights for all three initialisations; its data are larger."],
    )


def with_architecture(problem: Problem, name: str) -> Problem:
    """The problem with another network, and one group per class."""
    setup = problem.setup
    if name == setup.model:
        return problem.with_changes(partition="class")
    if not setup.options:  # presets at the paper's scale have no options
        literal = preset(setup.data, name, "paper")
        return problem.with_changes(model=name, recipe=literal.recipe, settings=literal.settings, partition="class")
    return problem.with_changes(
        model=name, options=preset(setup.data, name).options, recipe=_recipe(problem, name), partition="class"
    )


def _recipe(problem: Problem, name: str) -> Recipe:
    """The setup's recipe, adapted to a network: at most as many epochs, and enough checkpoints."""
    own = problem.setup.recipe
    changes: dict[str, Any] = dict(_RECIPES.get(name, {}))
    recipe = replace(own, **changes | {"epochs": min(own.epochs, changes.get("epochs", own.epochs))})
    total = recipe.epochs * -(-len(problem.train) // recipe.batch_size)
    return replace(recipe, checkpoint_every=max(1, total // _CHECKPOINTS))


def _describe_training(problem: Problem, name: str) -> str:
    recipe = with_architecture(problem, name).setup.recipe
    momentum = f" and momentum {recipe.momentum:g}" if recipe.momentum else ""
    return f"{NETWORKS[name]} {recipe.epochs} epochs at learning rate {recipe.rate:g}{momentum}"


def with_initialisation(problem: Problem, name: str) -> Problem:
    """The problem with other initial weights, and one group per class."""
    options = dict(problem.setup.options)
    if getattr(problem.network, "spec", {}).get("init") != name:
        options["init"] = name
    return problem.with_changes(options=options, partition="class")


_VARIANTS = {"architectures": with_architecture, "initialisations": with_initialisation}


def _report(problem: Problem, bench: str, names: dict[str, str], notes: Sequence[str]) -> Report:
    for name in names:
        variant = _VARIANTS[bench](problem, name)
        variant.exact.run([NO_ROWS, *variant.single_groups], [0])
    rows = cached_rows(problem, bench, _ROWS[bench], list(names))
    for row in rows:
        row |= {f"rho_{other['method']}": _rho(row["W"], other["W"]) for other in rows}
        row |= {f"exact_rho_{other['method']}": _rho(row["exact"], other["exact"]) for other in rows}
    count = len(batch_of_label(problem))
    label = problem.data.classes[_label(problem)]
    return Report(
        bench,
        f"Which class a batch of label {label} is attributed to, by {bench[:-1]}: {describe_data(problem)}",
        rows,
        COLUMNS | {f"rho_{name}": f"rho with {title}" for name, title in names.items()},
        notes=[
            f"W: how far the predictions for {count} test samples of label {label} move without each class (Dist_1), "
            "as predicted by class-wise synsets. Exact: the same by retraining without each class.",
            f"rho: Spearman correlation of W over the {len(rows[0]['W'])} classes, with the network's own exact answer "
            "and with W of the other networks. In the JSON, exact_rho_… compares exact answers.",
            *notes,
        ],
        reference={
            "mean rho between rows": _mean_pairwise_rho(rows, "W"),
            "mean rho between exact answers": _mean_pairwise_rho(rows, "exact"),
        },
        figure=_figure(rows, problem.data.classes, label, bench),
    )


COLUMNS = {
    "title": "network",
    "parameters": "parameters",
    "accuracy": "test accuracy",
    "top": "top class by W",
    "exact_top": "top class by retraining",
    "top_is_label": "top class is the label",
    "rho_exact": "rho with exact",
    "seconds": "seconds",
    "trainings": "cost in trainings",
    "exact_seconds": "seconds of retraining",
}


def batch_of_label(problem: Problem) -> Samples:
    """Test samples of the label to explain."""
    test = problem.data.test
    return test[np.flatnonzero(test.labels.numpy() == _label(problem))[:MOST_SAMPLES]]


def _architecture_row(problem: Problem, name: str) -> Row:
    return _row(with_architecture(problem, name), name, NETWORKS[name])


def _initialisation_row(problem: Problem, name: str) -> Row:
    return _row(with_initialisation(problem, name), name, INITIALISATIONS[name])


_ROWS = {"architectures": _architecture_row, "initialisations": _initialisation_row}


def _row(problem: Problem, name: str, title: str) -> Row:
    samples, removals = batch_of_label(problem), problem.single_groups
    settings = settings_of(problem, "ddm")
    datamodel, seconds = problem.datamodel(settings), problem.matching_seconds(settings)
    weights = np.nan_to_num(datamodel.attribute(samples, "prediction", level="class").scores)
    base, *retrained = problem.exact.outputs([NO_ROWS, *removals], 0, samples.batch()[0])
    exact = np.array([float(shift(logits, base).mean()) for logits in retrained])
    classes, label = problem.partition.names, problem.data.classes[_label(problem)]
    return {
        "method": name,
        "title": title,
        "parameters": problem.target.flat.size,
        "accuracy": problem.target.accuracy(problem.data.test),
        "classes": list(classes),
        "W": weights.tolist(),
        "exact": exact.tolist(),
        "top": classes[int(weights.argmax())],
        "exact_top": classes[int(exact.argmax())],
        "top_is_label": classes[int(weights.argmax())] == label,
        "rho_exact": _rho(weights, exact),
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "exact_seconds": problem.exact.mean_seconds(removals) * len(removals),
    }


def _label(problem: Problem) -> int:
    return min(LABEL, len(problem.data.classes) - 1)


def _rho(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    return mean_spearman(np.asarray(a)[:, None], np.asarray(b)[:, None])


def _mean_pairwise_rho(rows: Sequence[Row], key: str) -> float:
    pairs = [_rho(a[key], b[key]) for i, a in enumerate(rows) for b in rows[i + 1 :]]
    return float(np.mean(pairs))


def _figure(rows: Sequence[Row], classes: Sequence[str], label: str, bench: str) -> Figure:
    """A panel per row: W as bars and the exact answer as markers, each scaled to its own maximum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 1.5 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, row in zip(panels, rows, strict=True):
        places = range(len(row["W"]))
        axes.bar(places, _scaled(row["W"]), color=_BARS, label="W from the synsets")
        axes.plot(places, _scaled(row["exact"]), "D", color=_MARKERS, label="exact, from retraining")
        axes.set_title(f"{row['title']}: rho with exact {row['rho_exact']:.2f}", fontsize=9, loc="left")
        axes.set_ylim(min(0.0, min(_scaled(row["W"]))), 1.12)
        axes.set_xticks(places, row["classes"], rotation=90 if len(classes) > 20 else 0, fontsize=8)
        axes.set_ylabel("W / max", fontsize=8)
    panels[-1].set_xlabel(f"removed class (the test samples have label {label})")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(f"Class-wise weights by {bench[:-1]}", fontsize=10)
    return figure


def _scaled(values: Sequence[float]) -> list[float]:
    top = max(values) or 1.0
    return [value / top for value in values]
