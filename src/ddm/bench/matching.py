"""``matching`` (the paper's Table 4): how much of the training can be replayed or undone with the synsets alone.

Forward synsets train the network from θ_0; reverse synsets fine-tune it from θ_τ back towards θ_0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from ddm.bench.fidelity import describe_problem
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import NO_ROWS, Problem
from ddm.bench.setup import Setup
from ddm.compute import engine
from ddm.compute.files import read_json_object, write_json
from ddm.data.samples import Samples
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings
from ddm.distil.synset import Synset
from ddm.networks.state import State
from ddm.training.target import Target

TITLES = {
    "normal": "normal training",
    "ddm-match": "DDM-match (forward matching)",
    "ddm": "DDM (reverse matching)",
    "ddm-match-paper": "DDM-match, the paper's settings taken literally",
    "ddm-paper": "DDM, the paper's settings taken literally",
    "retrain": "retraining without each class",
}

COLUMNS = {
    "title": "method",
    "accuracy_0": "accuracy at θ_0",
    "accuracy_tau": "accuracy at θ_τ",
    "steps": "steps on the synset",
    "towards": "cosine with θ_τ − θ_0",
    "accuracy_once": "accuracy with all groups removed, as the library does",
    "class_once": "class removed: accuracy on it",
    "others_once": "on the others",
    "class_far": "class removed by fine-tuning to chance: accuracy on it",
    "others_far": "on the others",
    "seconds": "seconds",
    "trainings": "cost in trainings",
}

_PAPER = {
    "mnist": {"normal": (12.5, 95.7), "ddm-match": (12.6, 85.0), "ddm": (0.6, 95.7)},
    "cifar10": {"normal": (12.6, 85.0), "ddm-match": (12.6, 40.2), "ddm": (15.5, 85.0)},
    "cifar100": {"normal": (2.2, 56.1), "ddm-match": (2.2, 23.5), "ddm": (0.8, 56.1)},
    "tiny-imagenet": {"normal": (1.4, 37.5), "ddm-match": (1.4, 7.8), "ddm": (0.1, 37.5)},
}

_FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Candidate lengths of training on a forward synset, as fractions of the recipe's number of steps."""

_RATES = (1.0, 0.3, 0.1, 0.03)
"""Candidate learning rates of that training, as fractions of the recipe's."""

_MOST_STEPS = 1024
"""Maximum number of steps of fine-tuning to chance."""


def run(problem: Problem) -> Report:
    """Measure the accuracy at both ends of the trajectory, reached by training on the synsets alone."""
    problem.exact.run([NO_ROWS, *_class_rows(problem)], [0])
    rows = cached_rows(problem, "matching", compute_row, list(TITLES))
    paper = _PAPER.get(problem.setup.data, {})
    return Report(
        "matching",
        f"Accuracy at both ends of the training: {describe_problem(problem)}",
        rows,
        COLUMNS,
        notes=[
            f"All accuracies are on the {len(problem.data.test):,} samples of the test split.",
            "Forward rows start at θ_0 and train on all synsets as one batch. Of "
            f"{len(_FRACTIONS)} numbers of steps and {len(_RATES)} learning rates, both up to the recipe's own, the "
            "pair with the best validation accuracy is shown.",
            "Reverse rows start at θ_τ and fine-tune on all synsets. They take 1, 2, 4, … times the library's steps, "
            "until validation accuracy falls to that of θ_0 or to chance. *As the library does* takes its steps once. "
            "The cosine tells whether fine-tuning followed the training backwards: a network can also fall to chance "
            "because it is destroyed.",
            "A class is removed by fine-tuning θ_τ on its class synset: once, as the library does, and until "
            "validation accuracy on the class is chance. The accuracies are means over classes. On forward synsets, "
            "this fine-tuning ascends the loss.",
            "Seconds include distillation and training or fine-tuning to the other end of the trajectory.",
            "The paper's networks and data are larger, and it does not say how long it fine-tunes.",
        ],
        reference={
            "chance": 1 / len(problem.data.classes),
            "seconds of one training": problem.training_seconds,
            "parameters": problem.target.flat.size,
        },
        paper={name: f"{zero} → {tau}" for name, (zero, tau) in paper.items()},
    )


def compute_row(problem: Problem, method: str) -> Row:
    """The accuracies and the cost of one method."""
    if method == "normal":
        measured, seconds = _normal_training(problem)
    elif method == "retrain":
        measured, seconds = _retraining(problem)
    else:
        measured, seconds = _synset_training(problem, method)
    cost = {"seconds": seconds, "trainings": seconds / problem.training_seconds}
    return {"method": method, "title": TITLES[method]} | measured | cost


def _normal_training(problem: Problem) -> tuple[Row, float]:
    ends = {"accuracy_0": _accuracy(problem, *problem.target.at(0)), "accuracy_tau": _trained_accuracy(problem)}
    return ends, problem.training_seconds


def _retraining(problem: Problem) -> tuple[Row, float]:
    removals = _class_rows(problem)
    logits = problem.exact.outputs(removals, 0, problem.data.test.batch()[0])
    pairs = zip(logits, _classes(problem), strict=True)
    accuracies = [_accuracy_in_and_out(*pair, problem.data.test.labels) for pair in pairs]
    return _mean_accuracies("once", accuracies), problem.exact.mean_seconds(removals) * len(removals)


def _synset_training(problem: Problem, method: str) -> tuple[Row, float]:
    settings = _settings(problem, method)
    datamodel, started = problem.datamodel(settings), time.perf_counter()
    measured = _train_forward(datamodel, problem) if "match" in method else _finetune_back(datamodel, problem)
    seconds = problem.matching_seconds(settings) + time.perf_counter() - started
    return measured | _remove_classes(datamodel, problem), seconds


def _settings(problem: Problem, method: str) -> Settings:
    if method == "ddm-match-paper":
        return replace(settings_of(problem, "ddm-paper"), matching="forward")
    return settings_of(problem, method)


def _train_forward(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """Train from θ_0 on all synsets; validation accuracy chooses the number of steps and the learning rate."""
    target, synset, recipe = problem.target, datamodel.synset, problem.setup.recipe
    total = recipe.epochs * -(-len(problem.train) // recipe.batch_size)
    marks = sorted({max(1, round(fraction * total)) for fraction in _FRACTIONS})
    usable = synset.usable.nonzero()[:, 0]
    theta, fixed = target.at(0)
    candidates = []
    for rate in _RATES:
        weights = torch.full((len(usable),), rate * recipe.rate / len(usable))
        candidates += list(finetune_on_synsets(target, theta, fixed, synset, usable, weights, marks))
    scores = [_accuracy(problem, reached, fixed, "validation") for _, reached in candidates]
    facts: Row = {"accuracy_0": _accuracy(problem, theta, fixed), "accuracy_tau": None, "steps": None}
    if scores:
        steps, reached = candidates[int(np.argmax(scores))]
        facts |= {
            "accuracy_tau": _accuracy(problem, reached, fixed),
            "steps": steps,
            "towards": _cosine(reached - theta, target.theta - theta),
        }
    return facts | _accuracy_without_all(datamodel, problem)


def _finetune_back(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """Fine-tune from θ_τ on all synsets until validation accuracy is that of θ_0 or chance."""
    target, synset = problem.target, datamodel.synset
    start, fixed = target.at(0)
    goal = max(_accuracy(problem, start, fixed, "validation"), 1 / len(problem.data.classes))
    steps, reached = _finetune_until(
        target,
        synset,
        synset.usable.nonzero()[:, 0],
        goal,
        lambda at: _accuracy(problem, at, target.fixed, "validation"),
    )
    return {
        "accuracy_0": _accuracy(problem, reached, target.fixed),
        "accuracy_tau": _trained_accuracy(problem),
        "steps": steps,
        "towards": _cosine(target.theta - reached, target.theta - start),
        **_accuracy_without_all(datamodel, problem),
    }


def _accuracy_without_all(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """Accuracy of the library's counterfactual without any group."""
    everything = datamodel.synset.usable.numpy()
    theta = datamodel._clusters.parameters(everything[None])[0]
    return {"accuracy_once": _accuracy(problem, theta, problem.target.fixed)}


def _remove_classes(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """Accuracy on a removed class and on the others, after fine-tuning on its synset once, and until chance."""
    target, synset, data = problem.target, datamodel.class_synset, problem.data
    if synset is None:
        return {}
    once: list[tuple[float, float]] = []
    far: list[tuple[float, float]] = []
    for index, label in enumerate(_classes(problem)):
        if not synset.usable[index]:
            continue
        models = [_finetune_once(target, synset, index)]
        inside = data.validation[(data.validation.labels == label).numpy()]

        def score(at: Tensor, inside: Samples = inside) -> float:
            return accuracy_at(target, at, target.fixed, inside)

        chance = 1 / len(data.classes)
        group = torch.tensor([index])
        models.append(_finetune_until(target, synset, group, chance, score)[1] if len(inside) else models[0])
        for accuracies, theta in zip((once, far), models, strict=True):
            accuracies.append(
                _accuracy_in_and_out(logits_at(target, theta, target.fixed, data.test), label, data.test.labels)
            )
    return _mean_accuracies("once", once) | _mean_accuracies("far", far)


def _finetune_once(target: Target, synset: Synset, index: int) -> Tensor:
    """θ_p ``(P,)`` without one class, as the library computes it."""
    groups = torch.tensor([index])
    ((_, theta),) = finetune_on_synsets(
        target, target.theta, target.fixed, synset, groups, _step_sizes(synset, groups), [synset.steps]
    )
    return theta


def _finetune_until(
    target: Target, synset: Synset, groups: Tensor, goal: float, score: Callable[[Tensor], float]
) -> tuple[int, Tensor]:
    """Fine-tune on the synsets of some groups until the score is at most ``goal``; return the steps and θ.

    If no θ reaches the goal, the one with the lowest score is returned.
    """
    marks = [synset.steps]
    while 2 * marks[-1] <= _MOST_STEPS:
        marks.append(2 * marks[-1])
    best = (0, target.theta)
    lowest = score(target.theta)
    for steps, theta in finetune_on_synsets(
        target, target.theta, target.fixed, synset, groups, _step_sizes(synset, groups), marks
    ):
        if (value := score(theta)) < lowest:
            best, lowest = (steps, theta), value
        if lowest <= goal:
            break
    return best


def _step_sizes(synset: Synset, groups: Tensor) -> Tensor:
    """Step sizes α_κ / T ``(B,)`` of some groups."""
    return synset.step_sizes[groups] / synset.steps


def finetune_on_synsets(
    target: Target,
    theta: Tensor,
    fixed: State,
    synset: Synset,
    groups: Tensor,
    weights: Tensor,
    marks: Sequence[int],
) -> Iterator[tuple[int, Tensor]]:
    """Step θ ← θ − Σ_κ w_κ ∇L(θ; S_κ) over B groups; yield (steps, θ ``(P,)``) at each mark. Stops if θ diverges."""
    images = synset.pictures[groups].to(target.theta)
    targets = synset.targets[groups].to(target.theta)
    labels = targets.argmax(-1) if synset.hard else targets
    weights = weights.to(target.theta)
    for step in range(1, marks[-1] + 1):
        theta = theta.detach().requires_grad_()
        logits = target.flat(theta, fixed, images.flatten(0, 1)).unflatten(0, images.shape[:2])
        losses = vmap(target.loss)(logits, labels)
        (gradient,) = torch.autograd.grad(losses @ weights, theta)
        theta = (theta - gradient).detach()
        if not theta.isfinite().all():
            return
        if step in marks:
            yield step, theta


def logits_at(target: Target, theta: Tensor, fixed: State, samples: Samples) -> Tensor:
    """Logits ``(n, L)`` at θ."""
    parts = torch.arange(len(samples)).split(512)
    with torch.no_grad():
        return torch.cat([target.flat(theta, fixed, samples.batch(rows)[0].to(theta)) for rows in parts]).cpu()


def accuracy_at(target: Target, theta: Tensor, fixed: State, samples: Samples) -> float:
    """Fraction classified correctly at θ."""
    return float((logits_at(target, theta, fixed, samples).argmax(1) == samples.labels).double().mean())


def _accuracy(problem: Problem, theta: Tensor, fixed: State, split: str = "test") -> float:
    return accuracy_at(problem.target, theta, fixed, problem.data.split(split))


def _trained_accuracy(problem: Problem) -> float:
    return _accuracy(problem, problem.target.theta, problem.target.fixed)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


def _classes(problem: Problem) -> list[int]:
    """The classes present in the training set."""
    classes: list[int] = problem.train.labels.unique().tolist()
    return classes


def _class_rows(problem: Problem) -> list[np.ndarray]:
    labels = problem.train.labels.numpy()
    return [np.flatnonzero(labels == label) for label in _classes(problem)]


def _accuracy_in_and_out(logits: Tensor, label: int, labels: Tensor) -> tuple[float, float]:
    """Accuracy of logits ``(n, L)`` on the samples of a class and on all others."""
    right = (logits.argmax(1) == labels).double()
    return float(right[labels == label].mean()), float(right[labels != label].mean())


def _mean_accuracies(when: str, accuracies: Sequence[tuple[float, float]]) -> Row:
    """Means over the classes that have test samples."""
    known = np.asarray(accuracies)[np.isfinite(accuracies).all(1)] if accuracies else np.empty((0, 2))
    inside, others = known.mean(0).tolist() if len(known) else (None, None)
    return {f"class_{when}": inside, f"others_{when}": others}


def cached_rows(
    problem: Problem, bench: str, compute: Callable[[Problem, str], Row], names: Sequence[str]
) -> list[Row]:
    """The row of each name; rows that are not in the cache are computed in parallel."""
    folder = problem.work / f"{bench}-{problem.setup.key()}"
    missing = [name for name in names if not (folder / f"{name}.json").exists()]
    if missing:
        problem.partition, problem.training_seconds  # noqa: B018 (computed once, before the workers need them)
    for _ in engine.run_tasks(_ComputeRow(compute, problem.setup, problem.work, folder), missing, description=bench):
        pass
    return [read_json_object(folder / f"{name}.json") for name in names]


class _ComputeRow:
    """A worker task that computes and stores a row."""

    def __init__(self, compute: Callable[[Problem, str], Row], setup: Setup, work: Path, folder: Path) -> None:
        self.compute, self.setup, self.work, self.folder = compute, setup, work, folder

    def __call__(self, name: str) -> None:
        write_json(self.folder / f"{name}.json", self.compute(Problem(self.setup, self.work), name))
