"""``matching``, Table 4: how much of the training the synsets hold, forwards from θ_0 and backwards from θ_τ."""

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

from ddm import engine
from ddm.bench.fidelity import described
from ddm.bench.methods import settings_of
from ddm.bench.problem import NOTHING, Problem
from ddm.bench.report import Report, Row
from ddm.bench.setup import Setup
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Samples
from ddm.files import read_table, write_json
from ddm.matching import Settings
from ddm.parameters import State
from ddm.synset import Synset
from ddm.target import Target

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
    "accuracy_once": "accuracy, all groups removed as the library does",
    "class_once": "class removed: accuracy on it",
    "others_once": "on the others",
    "class_far": "class removed, fine-tuned to chance: on it",
    "others_far": "on the others ",
    "seconds": "seconds",
    "trainings": "in trainings",
}

_PAPER = {
    "mnist": {"normal": (12.5, 95.7), "ddm-match": (12.6, 85.0), "ddm": (0.6, 95.7)},
    "cifar10": {"normal": (12.6, 85.0), "ddm-match": (12.6, 40.2), "ddm": (15.5, 85.0)},
    "cifar100": {"normal": (2.2, 56.1), "ddm-match": (2.2, 23.5), "ddm": (0.8, 56.1)},
    "tiny-imagenet": {"normal": (1.4, 37.5), "ddm-match": (1.4, 7.8), "ddm": (0.1, 37.5)},
}

_FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Lengths of a training on a forward synset, in steps of the recipe's own training."""

_RATES = (1.0, 0.3, 0.1, 0.03)
"""Its learning rates, in the recipe's own."""

_LONGEST = 1024
"""Steps that fine-tuning to chance may take."""


def run(problem: Problem) -> Report:
    """Accuracy at both ends of the trajectory, reached by training on the synsets alone."""
    problem.exact.make([NOTHING, *_without_classes(problem)], [0])
    rows = kept_rows(problem, "matching", row, list(TITLES))
    paper = _PAPER.get(problem.setup.data, {})
    return Report(
        "matching",
        f"Accuracy at both ends of the training: {described(problem)}",
        rows,
        COLUMNS,
        notes=[
            f"All accuracies are on the {len(problem.data.test):,} samples of the test split.",
            "Forward rows start at θ_0 and descend the mean loss of all groups' synsets, as one batch; of "
            f"{len(_FRACTIONS)} lengths up to the recipe's own number of steps and {len(_RATES)} learning rates up to "
            "the recipe's own, the pair with the best validation accuracy is shown.",
            "Reverse rows start at θ_τ and fine-tune on all groups' synsets, in the library's own steps but more of "
            "them (1, 2, 4, … times), until validation accuracy is that of θ_0 or chance; 'as the library does' is "
            "once. The cosine says whether what was walked is the way the training went: a network can also reach "
            "chance by being wrecked.",
            "A class is removed by fine-tuning θ_τ on its class synset, once (as the library does) and until "
            "validation accuracy on it is chance; means over classes. Forward synsets are climbed for this.",
            "seconds: distilling and walking to the other end of the training.",
            "The paper's networks and data are larger, and it does not say how long it fine-tunes.",
        ],
        reference={
            "chance": 1 / len(problem.data.classes),
            "seconds of one training": problem.training_seconds,
            "parameters": problem.target.flat.size,
        },
        paper={name: f"{zero} → {tau}" for name, (zero, tau) in paper.items()},
    )


def row(problem: Problem, method: str) -> Row:
    """What one method measures."""
    facts: Row = {"method": method, "title": TITLES[method]}
    if method == "normal":
        seconds = problem.training_seconds
        found = {"accuracy_0": _accuracy(problem, *problem.target.at(0)), "accuracy_tau": _trained(problem)}
    elif method == "retrain":
        removals = _without_classes(problem)
        seconds = problem.exact.seconds(removals) * len(removals)
        logits = problem.exact.outputs(removals, 0, problem.data.test.batch()[0])
        pairs = zip(logits, _classes(problem), strict=True)
        found = _means("once", [_split(*pair, problem.data.test.labels) for pair in pairs])
    else:
        settings = _settings(problem, method)
        datamodel, started = problem.datamodel(settings), time.perf_counter()
        found = _forward(datamodel, problem) if "match" in method else _reverse(datamodel, problem)
        seconds = problem.matching_seconds(settings) + time.perf_counter() - started
        found |= _class_removal(datamodel, problem)
    return facts | found | {"seconds": seconds, "trainings": seconds / problem.training_seconds}


def _settings(problem: Problem, method: str) -> Settings:
    if method == "ddm-match-paper":
        return replace(settings_of(problem, "ddm-paper"), matching="forward")
    return settings_of(problem, method)


def _forward(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """From θ_0 on all synsets; how long and how fast is chosen on validation samples."""
    target, synset, recipe = problem.target, datamodel.synset, problem.setup.recipe
    total = recipe.epochs * -(-len(problem.train) // recipe.batch_size)
    marks = sorted({max(1, round(fraction * total)) for fraction in _FRACTIONS})
    usable = synset.usable.nonzero()[:, 0]
    theta, fixed = target.at(0)
    walked = []
    for rate in _RATES:
        weights = torch.full((len(usable),), rate * recipe.lr / len(usable))
        walked += list(walk(target, theta, fixed, synset, usable, weights, marks))
    scores = [_accuracy(problem, reached, fixed, "validation") for _, reached in walked]
    facts: Row = {"accuracy_0": _accuracy(problem, theta, fixed), "accuracy_tau": None, "steps": None}
    if scores:
        steps, reached = walked[int(np.argmax(scores))]
        facts |= {
            "accuracy_tau": _accuracy(problem, reached, fixed),
            "steps": steps,
            "towards": _cosine(reached - theta, target.theta - theta),
        }
    return facts | _all_once(datamodel, problem)


def _reverse(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """From θ_τ by fine-tuning on all synsets until nothing seems left of the training."""
    target, synset = problem.target, datamodel.synset
    start, fixed = target.at(0)
    goal = max(_accuracy(problem, start, fixed, "validation"), 1 / len(problem.data.classes))
    steps, reached = _until(
        target,
        synset,
        synset.usable.nonzero()[:, 0],
        goal,
        lambda at: _accuracy(problem, at, target.fixed, "validation"),
    )
    return {
        "accuracy_0": _accuracy(problem, reached, target.fixed),
        "accuracy_tau": _trained(problem),
        "steps": steps,
        "towards": _cosine(target.theta - reached, target.theta - start),
        **_all_once(datamodel, problem),
    }


def _all_once(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    everything = datamodel.synset.usable.numpy()
    theta = datamodel._clusters.parameters(everything[None])[0]
    return {"accuracy_once": _accuracy(problem, theta, problem.target.fixed)}


def _class_removal(datamodel: DistilledDatamodel, problem: Problem) -> Row:
    """Accuracy on each removed class and on the others, by the class synset: once, and on to chance."""
    target, synset, data = problem.target, datamodel.class_synset, problem.data
    if synset is None:
        return {}
    once: list[tuple[float, float]] = []
    far: list[tuple[float, float]] = []
    for index, label in enumerate(_classes(problem)):
        if not synset.usable[index]:
            continue
        steps = [_shifted(target, synset, index)]
        inside = data.validation[(data.validation.labels == label).numpy()]

        def score(at: Tensor, inside: Samples = inside) -> float:
            return accuracy(target, at, target.fixed, inside)

        chance = 1 / len(data.classes)
        steps.append(_until(target, synset, torch.tensor([index]), chance, score)[1] if len(inside) else steps[0])
        for found, theta in zip((once, far), steps, strict=True):
            found.append(_split(outputs(target, theta, target.fixed, data.test), label, data.test.labels))
    return _means("once", once) | _means("far", far)


def _shifted(target: Target, synset: Synset, index: int) -> Tensor:
    """θ_p ``(P,)`` without one class, as the library has it."""
    groups = torch.tensor([index])
    ((_, theta),) = walk(target, target.theta, target.fixed, synset, groups, _step(synset, groups), [synset.steps])
    return theta


def _until(
    target: Target, synset: Synset, groups: Tensor, goal: float, score: Callable[[Tensor], float]
) -> tuple[int, Tensor]:
    """Steps and θ where fine-tuning on the synsets of some groups first scores at most ``goal``, or least."""
    marks = [synset.steps]
    while 2 * marks[-1] <= _LONGEST:
        marks.append(2 * marks[-1])
    best = (0, target.theta)
    lowest = score(target.theta)
    for steps, theta in walk(target, target.theta, target.fixed, synset, groups, _step(synset, groups), marks):
        if (value := score(theta)) < lowest:
            best, lowest = (steps, theta), value
        if lowest <= goal:
            break
    return best


def _step(synset: Synset, groups: Tensor) -> Tensor:
    """α_κ / T ``(B,)`` of some groups."""
    return synset.lengths[groups] / synset.steps


def walk(
    target: Target,
    theta: Tensor,
    fixed: State,
    synset: Synset,
    groups: Tensor,
    weights: Tensor,
    marks: Sequence[int],
) -> Iterator[tuple[int, Tensor]]:
    """θ ← θ − Σ_κ w_κ ∇L(θ; S_κ) over B groups; (steps, θ ``(P,)``) at each mark, until it is finite no more."""
    images = synset.images[groups].to(target.theta)
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


def outputs(target: Target, theta: Tensor, fixed: State, samples: Samples) -> Tensor:
    """Logits ``(n, L)`` at θ."""
    parts = torch.arange(len(samples)).split(512)
    with torch.no_grad():
        return torch.cat([target.flat(theta, fixed, samples.batch(rows)[0].to(theta)) for rows in parts]).cpu()


def accuracy(target: Target, theta: Tensor, fixed: State, samples: Samples) -> float:
    """Fraction classified correctly at θ."""
    return float((outputs(target, theta, fixed, samples).argmax(1) == samples.labels).double().mean())


def _accuracy(problem: Problem, theta: Tensor, fixed: State, split: str = "test") -> float:
    return accuracy(problem.target, theta, fixed, problem.data.split(split))


def _trained(problem: Problem) -> float:
    return _accuracy(problem, problem.target.theta, problem.target.fixed)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


def _classes(problem: Problem) -> list[int]:
    """The classes that are in the training set."""
    found: list[int] = problem.train.labels.unique().tolist()
    return found


def _without_classes(problem: Problem) -> list[np.ndarray]:
    labels = problem.train.labels.numpy()
    return [np.flatnonzero(labels == label) for label in _classes(problem)]


def _split(logits: Tensor, label: int, labels: Tensor) -> tuple[float, float]:
    """Accuracy of logits ``(n, L)`` on the samples of a class, and on the others."""
    right = (logits.argmax(1) == labels).double()
    return float(right[labels == label].mean()), float(right[labels != label].mean())


def _means(when: str, found: Sequence[tuple[float, float]]) -> Row:
    """Means over the classes that have test samples."""
    known = np.asarray(found)[np.isfinite(found).all(1)] if found else np.empty((0, 2))
    inside, others = known.mean(0).tolist() if len(known) else (None, None)
    return {f"class_{when}": inside, f"others_{when}": others}


def kept_rows(problem: Problem, bench: str, make: Callable[[Problem, str], Row], names: Sequence[str]) -> list[Row]:
    """The row of each name, in order; those not kept yet are made in parallel."""
    folder = problem.work / f"{bench}-{problem.setup.key()}"
    missing = [name for name in names if not (folder / f"{name}.json").exists()]
    if missing:
        problem.partition, problem.training_seconds  # noqa: B018 (made once, before processes need them)
    for _ in engine.each(_Keep(make, problem.setup, problem.work, folder), missing, what=bench):
        pass
    return [read_table(folder / f"{name}.json") for name in names]


class _Keep:
    """Makes a row in a process of its own and keeps it."""

    def __init__(self, make: Callable[[Problem, str], Row], setup: Setup, work: Path, folder: Path) -> None:
        self.make, self.setup, self.work, self.folder = make, setup, work, folder

    def __call__(self, name: str) -> None:
        write_json(self.folder / f"{name}.json", self.make(Problem(self.setup, self.work), name))
