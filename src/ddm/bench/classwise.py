"""``architectures`` and ``initialisations``: do different networks trace a batch to the same classes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.bench.matching import kept_rows
from ddm.bench.methods import settings_of
from ddm.bench.problem import NOTHING, Problem
from ddm.bench.report import Report, Row
from ddm.bench.setup import preset
from ddm.datasets.samples import Samples
from ddm.effects import shift
from ddm.exact import group_rows
from ddm.figures import mean_spearman
from ddm.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL, MOST = 2, 64
"""The label of the batch that is asked about, and its largest size."""

NETWORKS = {"convnet": "ConvNet", "alexnet": "AlexNet", "resnet18ap": "ResNet18AP", "simplevit": "SimpleViT"}
INITIALISATIONS = {"kaiming": "Kaiming (ini-1)", "normal": "normal (ini-2)", "xavier": "Xavier (ini-3)"}

_RECIPES: dict[str, dict[str, float | int]] = {
    "alexnet": {"epochs": 6, "lr": 0.02, "batch_size": 32},
    "resnet18ap": {"epochs": 4, "lr": 0.05, "batch_size": 64},
    "simplevit": {"epochs": 8, "lr": 0.02, "batch_size": 32, "momentum": 0.9},
}
"""How small networks learn on little data, chosen by a few trainings on MNIST; AlexNet diverges at 0.1 (README)."""

_CHECKPOINTS = 15
"""Of trainings that have few epochs."""

_BARS, _MARKERS = "#0072B2", "#D55E00"


def architectures(problem: Problem) -> Report:
    """Class-wise weights of a batch of one label, for networks of every architecture."""
    return _report(
        problem,
        "architectures",
        NETWORKS,
        [
            "Trained for: " + "; ".join(_trained(problem, name) for name in NETWORKS) + ". AlexNet diverges at 0.1.",
            "The paper says that all architectures trace to label 2 and look alike on MNIST; its networks are larger.",
        ],
    )


def initialisations(problem: Problem) -> Report:
    """Class-wise weights of a batch of one label, for one network from three kinds of initial weights."""
    return _report(
        problem,
        "initialisations",
        INITIALISATIONS,
        ["The paper says that the weights are alike for all three initialisations; its data are larger."],
    )


def architecture(problem: Problem, name: str) -> Problem:
    """The problem with another network and a group for each class."""
    setup = problem.setup
    if name == setup.model:
        return problem.changed(partition="class")
    if not setup.options:  # the paper's scale
        literal = preset(setup.data, name, "paper")
        return problem.changed(model=name, recipe=literal.recipe, settings=literal.settings, partition="class")
    return problem.changed(
        model=name, options=preset(setup.data, name).options, recipe=_recipe(problem, name), partition="class"
    )


def _recipe(problem: Problem, name: str) -> Recipe:
    """The setup's recipe with what a network needs, no longer than the setup's and with enough checkpoints."""
    own = problem.setup.recipe
    changes: dict[str, Any] = dict(_RECIPES.get(name, {}))
    recipe = replace(own, **changes | {"epochs": min(own.epochs, changes.get("epochs", own.epochs))})
    total = recipe.epochs * -(-len(problem.train) // recipe.batch_size)
    return replace(recipe, checkpoint_every=max(1, total // _CHECKPOINTS))


def _trained(problem: Problem, name: str) -> str:
    recipe = architecture(problem, name).setup.recipe
    momentum = f" and momentum {recipe.momentum:g}" if recipe.momentum else ""
    return f"{NETWORKS[name]} {recipe.epochs} epochs at learning rate {recipe.lr:g}{momentum}"


def initialisation(problem: Problem, name: str) -> Problem:
    """The problem with other initial weights and a group for each class."""
    options = dict(problem.setup.options)
    if getattr(problem.network, "spec", {}).get("init") != name:
        options["init"] = name
    return problem.changed(options=options, partition="class")


_VARIANTS = {"architectures": architecture, "initialisations": initialisation}


def _report(problem: Problem, bench: str, names: dict[str, str], notes: Sequence[str]) -> Report:
    for name in names:
        variant = _VARIANTS[bench](problem, name)
        variant.exact.make([NOTHING, *_without_groups(variant)], [0])
    rows = kept_rows(problem, bench, _ROWS[bench], list(names))
    for row in rows:
        row |= {f"rho_{other['method']}": _rho(row["W"], other["W"]) for other in rows}
        row |= {f"exact_rho_{other['method']}": _rho(row["exact"], other["exact"]) for other in rows}
    count = len(batch(problem))
    label = problem.data.classes[_label(problem)]
    return Report(
        bench,
        f"Which class a batch of label {label} is traced to, by {bench[:-1]}: {_described(problem)}",
        rows,
        COLUMNS | {f"rho_{name}": f"rho with {title}" for name, title in names.items()},
        notes=[
            f"W: how far the predictions for {count} test samples of label {label} move without each class (Dist_1), "
            "as the class-wise synsets say; exact: as retraining without each class shows. Positive is more.",
            f"rho: Spearman over the {len(rows[0]['W'])} classes, with a network's own exact answer and with W of the "
            "others (exact_rho_… in the JSON: the same between exact answers).",
            *notes,
        ],
        reference={
            "mean rho between rows": _mean_pair(rows, "W"),
            "mean rho between exact answers": _mean_pair(rows, "exact"),
        },
        figure=_figure(rows, problem.data.classes, label, bench),
    )


COLUMNS = {
    "title": "network",
    "parameters": "parameters",
    "accuracy": "test accuracy",
    "top": "top class",
    "exact_top": "top class, exact",
    "top_is_label": "the label's own",
    "rho_exact": "rho with exact",
    "seconds": "seconds",
    "trainings": "in trainings",
    "exact_seconds": "seconds of exact",
}


def _described(problem: Problem) -> str:
    setup = problem.setup
    pixels = f" at {setup.size}×{setup.size} pixels" if setup.size else ""
    return f"{setup.data}, {len(problem.train):,} training images{pixels}"


def batch(problem: Problem) -> Samples:
    """Test samples of the label that is asked about."""
    test = problem.data.test
    return test[np.flatnonzero(test.labels.numpy() == _label(problem))[:MOST]]


def _architecture_row(problem: Problem, name: str) -> Row:
    return _row(architecture(problem, name), name, NETWORKS[name])


def _initialisation_row(problem: Problem, name: str) -> Row:
    return _row(initialisation(problem, name), name, INITIALISATIONS[name])


_ROWS = {"architectures": _architecture_row, "initialisations": _initialisation_row}


def _row(problem: Problem, name: str, title: str) -> Row:
    asked, removals = batch(problem), _without_groups(problem)
    settings = settings_of(problem, "ddm")
    datamodel, seconds = problem.datamodel(settings), problem.matching_seconds(settings)
    found = np.nan_to_num(datamodel.attribute(asked, "prediction", level="class").scores)
    base, *retrained = problem.exact.outputs([NOTHING, *removals], 0, asked.batch()[0])
    exact = np.array([float(shift(logits, base).mean()) for logits in retrained])
    classes, label = problem.partition.names, problem.data.classes[_label(problem)]
    return {
        "method": name,
        "title": title,
        "parameters": problem.target.flat.size,
        "accuracy": problem.target.accuracy(problem.data.test),
        "classes": list(classes),
        "W": found.tolist(),
        "exact": exact.tolist(),
        "top": classes[int(found.argmax())],
        "exact_top": classes[int(exact.argmax())],
        "top_is_label": classes[int(found.argmax())] == label,
        "rho_exact": _rho(found, exact),
        "seconds": seconds,
        "trainings": seconds / problem.training_seconds,
        "exact_seconds": problem.exact.seconds(removals) * len(removals),
    }


def _without_groups(problem: Problem) -> list[np.ndarray]:
    return group_rows(problem.partition, np.eye(len(problem.partition), dtype=bool))


def _label(problem: Problem) -> int:
    return min(LABEL, len(problem.data.classes) - 1)


def _rho(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    return mean_spearman(np.asarray(a)[:, None], np.asarray(b)[:, None])


def _mean_pair(rows: Sequence[Row], key: str) -> float:
    pairs = [_rho(a[key], b[key]) for i, a in enumerate(rows) for b in rows[i + 1 :]]
    return float(np.mean(pairs))


def _figure(rows: Sequence[Row], classes: Sequence[str], label: str, bench: str) -> Figure:
    """A panel for each row: W as bars and the exact answer as markers, each scaled to its own maximum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 1.5 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, row in zip(panels, rows, strict=True):
        places = range(len(row["W"]))
        axes.bar(places, _scaled(row["W"]), color=_BARS, label="W, by the synsets")
        axes.plot(places, _scaled(row["exact"]), "D", color=_MARKERS, label="exact, by retraining")
        axes.set_title(f"{row['title']}: rho with exact {row['rho_exact']:.2f}", fontsize=9, loc="left")
        axes.set_ylim(min(0.0, min(_scaled(row["W"]))), 1.12)
        axes.set_xticks(places, row["classes"], rotation=90 if len(classes) > 20 else 0, fontsize=8)
        axes.set_ylabel("W / max", fontsize=8)
    panels[-1].set_xlabel(f"class removed (test samples are of label {label})")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(f"Class-wise weights by {bench[:-1]}", fontsize=10)
    return figure


def _scaled(values: Sequence[float]) -> list[float]:
    top = max(values) or 1.0
    return [value / top for value in values]
