"""``transfer``, of the supplement: which training data make a teacher hard to distil, and what leaving them out does.

The teacher is made hard to distil ("knowledge undistillation"): beside the labels it learns to differ from a network
that was trained as usual, as far as its accuracy allows.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm import engine, networks
from ddm.bench.methods import settings_of
from ddm.bench.problem import NOTHING, Problem
from ddm.bench.report import Report, Row
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Samples
from ddm.exact import Exact, group_rows
from ddm.figures import mean_spearman
from ddm.files import read_table, read_tensors, write_json, write_tensors
from ddm.matching import distil
from ddm.objectives import Objective, distillation
from ddm.parameters import State, load_state, state_of
from ddm.partition import Partition, make_partition
from ddm.recipe import Recipe
from ddm.target import Target, accuracy_of, hash_of_state
from ddm.training import train

WEIGHT, TEMPERATURE, BALANCE = 0.08, 4.0, 0.9
"""ω and T of undistillation, and α of distillation, which has the same T."""

PERCENTAGES = (10, 20, 30, 40)

_CLUSTERS = 3
"""A class, at most: the teacher is really retrained without each of them."""

TITLES = {
    "random": "random",
    "ddm-match": "DDM-match (forward matching)",
    "ddm": "DDM (reverse matching)",
    "ddm-response": "DDM (response matching)",
    "exact": "retraining the teacher without each group",
}

_PAPER = {
    "random": "94.1, 93.5, 88.7, 87.3, 85.8",
    "ddm": "94.1, 94.2, 94.2, 92.9, 87.3",
}
"""On CIFAR-10 with a ResNet-18, in the order of the columns."""


class Undistillable:
    """CE(f, y) − ω T² KL(softmax(f/T) ‖ s_y), a loss for labels ``(b,)`` or soft targets ``(b, L)``.

    softened: ``(L, L)`` s_l, the mean softened prediction of another network for the samples of class l. The divergence
              is linear in a soft target, as cross-entropy is.
    """

    def __init__(self, softened: Tensor, weight: float = WEIGHT, temperature: float = TEMPERATURE) -> None:
        self.logs, self.weight, self.temperature = softened.log(), weight, temperature

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        logs = self.logs.to(logits)
        other = labels @ logs if labels.is_floating_point() else logs[labels]
        own = (logits / self.temperature).log_softmax(-1)
        apart = (own.exp() * (own - other)).sum(-1).mean()
        return F.cross_entropy(logits, labels) - self.weight * self.temperature**2 * apart


@dataclass(frozen=True)
class Lesson:
    """One student to be trained: on the samples, by a teacher's logits ``(n, L)`` for them, with one batch order.

    path: where the student is kept
    """

    path: Path
    network: nn.Module
    samples: Samples
    teacher: Tensor
    recipe: Recipe


def learn(lesson: Lesson) -> None:
    """Distil a student, (1 − α) CE + α T² KL(teacher ‖ student) with both softened, and keep it."""
    started = time.perf_counter()
    network, samples, recipe = lesson.network, lesson.samples, lesson.recipe
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr, momentum=recipe.momentum)
    generator = torch.Generator().manual_seed(recipe.seed)
    softened = (lesson.teacher / TEMPERATURE).log_softmax(-1)
    network.train()
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(samples), generator=generator).split(recipe.batch_size):
            x, y = samples.batch(rows)
            logits = network(x)
            own = (logits / TEMPERATURE).log_softmax(-1)
            apart = F.kl_div(own, softened[rows], log_target=True, reduction="batchmean")
            loss = (1 - BALANCE) * F.cross_entropy(logits, y) + BALANCE * TEMPERATURE**2 * apart
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    write_tensors(lesson.path, state_of(network), {"seconds": time.perf_counter() - started})


class Teaching:
    """The teacher of a problem, its groups, its retrainings and its students, made on demand and kept."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        key = _hash([problem.setup.training_key(), WEIGHT, TEMPERATURE])
        self.folder = problem.work / f"teacher-{key}"

    @cached_property
    def teacher(self) -> Target:
        """The teacher, hard to distil, on one thread."""
        problem = self.problem
        x, y = problem.train.batch()
        softened = (problem.target.outputs(x) / TEMPERATURE).softmax(-1).cpu()
        uniform = torch.full_like(softened[0], 1 / softened.shape[1])
        means = [softened[y == label].mean(0) if (y == label).any() else uniform for label in range(softened.shape[1])]
        loss = Undistillable(torch.stack(means))
        return next(iter(engine.each(_Train(problem, loss, self.folder / "trajectory"), [0], workers=1)))

    @cached_property
    def partition(self) -> Partition:
        """The groups, by the teacher's own features."""
        setup = self.problem.setup
        clusters = min(setup.clusters, _CLUSTERS)
        return make_partition(self.teacher, self.problem.train, setup.partition, clusters, seed=setup.seed)

    @cached_property
    def exact(self) -> Exact:
        """Retraining the teacher."""
        return Exact(self.teacher, self.problem.train, self.folder / "exact", engine=self.problem.engine)

    @cached_property
    def objective(self) -> Objective:
        """KL(teacher ‖ student) on the validation samples, for the student of the full teacher."""
        (state,) = self.students([(NOTHING, 0)])
        return distillation(_outputs(self._student(state), self.problem.validation))

    def groups(self) -> list[np.ndarray]:
        """Rows of each group."""
        return group_rows(self.partition, np.eye(len(self.partition), dtype=bool))

    def ordered(self, method: str) -> Row:
        """Effects ``(K,)`` of groups on the objective by a method, and the seconds it took."""
        path = self.folder / f"effects-{_hash([self.problem.setup.key(), BALANCE, method])}.json"
        if not path.exists():
            started = time.perf_counter()
            effects = self._exact_effects() if method == "exact" else self._distilled_effects(method, path)
            seconds = time.perf_counter() - started
            if method == "exact":
                seconds = self.exact.seconds(self.groups()) * len(self.partition)
            write_json(path, {"effects": effects, "seconds": seconds})
        found: Row = read_table(path)
        return found

    def students(self, asked: Sequence[tuple[np.ndarray, int]]) -> list[State]:
        """The student of the teacher without some rows, for each (rows, batch order)."""
        return self.taught([(next(self.exact.states([rows], order)), order) for rows, order in asked])

    def taught(self, teachers: Sequence[tuple[State, int]]) -> list[State]:
        """The student of each teacher with a batch order."""
        lessons = [self._lesson(state, order) for state, order in teachers]
        missing = {lesson.path: lesson for lesson in lessons if not lesson.path.exists()}
        for _ in engine.each(learn, list(missing.values()), what="students"):
            pass
        return [read_tensors(lesson.path) for lesson in lessons]

    def accuracy(self, student: State) -> float:
        """On the test split."""
        return accuracy_of(self._student(student), self.problem.data.test)

    def teacher_accuracy(self, state: State) -> float:
        """Of a teacher, on the test split."""
        network = self.problem.network.eval()
        load_state(network, state)
        return accuracy_of(network, self.problem.data.test)

    def _distilled_effects(self, method: str, path: Path) -> list[float]:
        train_set, settings = self.problem.train, settings_of(self.problem, method)
        parts = distil(self.teacher, train_set, self.partition, settings, path.with_suffix(".parts"))
        datamodel = DistilledDatamodel(self.teacher, self.partition, *parts, settings, train_set.fingerprint())
        found: list[float] = np.nan_to_num(datamodel.attribute(self.problem.validation, self.objective).scores).tolist()
        return found

    def _exact_effects(self) -> list[float]:
        x, y = self.problem.validation.batch()
        outputs = self.exact.outputs([NOTHING, *self.groups()], 0, x)
        values = self.objective.values([outputs], outputs[0], y)[:, 0]
        effects: list[float] = (values[1:] - values[0]).tolist()
        return effects

    def _lesson(self, teacher: State, order: int) -> Lesson:
        problem, network = self.problem, self._blank()
        recipe = replace(problem.setup.recipe, seed=problem.setup.recipe.seed + order)
        facts = [hash_of_state(teacher), recipe.to_dict(), network.spec, BALANCE, TEMPERATURE]
        path = self.folder / "students" / f"{_hash(facts)}.safetensors"
        logits = torch.empty(0)
        if not path.exists():
            master = problem.network.eval()
            load_state(master, teacher)
            logits = _outputs(master, problem.train)
        return Lesson(path, network, problem.train, logits, recipe)

    def _blank(self) -> networks.Network:
        """A network half as wide as the teacher, or as a ConvNet is by default, with other initial weights."""
        setup, options = self.problem.setup, self.problem.setup.options
        width, depth = max(1, options.get("width", 128) // 2), options.get("depth", 3)
        return networks.ConvNet(
            self.problem.train.shape, len(self.problem.data.classes), width=width, depth=depth, seed=setup.seed + 1
        )

    def _student(self, state: State) -> nn.Module:
        network = self._blank().eval()
        load_state(network, state)
        return network


class _Train:
    """Trains the teacher."""

    def __init__(self, problem: Problem, loss: Undistillable, directory: Path) -> None:
        self.problem, self.loss, self.directory = problem, loss, directory

    def __call__(self, _: int) -> Target:
        setup = self.problem.setup
        return train(self.problem.network, self.problem.train, setup.recipe, loss=self.loss, directory=self.directory)


def run(problem: Problem) -> Report:
    """Accuracy of students whose teacher was trained without the groups that make it hard to follow."""
    teaching = Teaching(problem)
    orders = range(problem.setup.orders)
    teaching.exact.make([NOTHING], orders)
    effects = {method: teaching.ordered(method) for method in TITLES if method != "random"}
    asked = [
        (removed(teaching, effects, method, percentage, order), order)
        for method in TITLES
        for percentage in PERCENTAGES
        for order in orders
    ]
    for order in orders:
        teaching.exact.make([rows for rows, of in asked if of == order], [order])
    full = [(NOTHING, order) for order in orders]
    teaching.students([*full, *asked])
    before = float(np.mean([teaching.accuracy(state) for state in teaching.students(full)]))
    return Report(
        "transfer",
        f"Students of a teacher without the data that make it hard to distil: {_described(teaching)}",
        [_row(teaching, effects, method, before) for method in TITLES],
        COLUMNS,
        notes=_notes(teaching, before),
        reference={
            "test accuracy of the teacher": teaching.teacher.accuracy(problem.data.test),
            "test accuracy of a usual network": problem.target.accuracy(problem.data.test),
            "seconds of one training": problem.training_seconds,
            "groups": len(teaching.partition),
            "batch orders": len(orders),
        },
        paper=_PAPER if problem.setup.data == "cifar10" else {},
    )


COLUMNS = {
    "title": "method",
    "accuracy_0": "0 % removed",
    **{f"accuracy_{percentage}": f"{percentage} %" for percentage in PERCENTAGES},
    **{f"teacher_{percentage}": f"its teacher, {percentage} %" for percentage in PERCENTAGES},
    "rho_exact": "rho with exact",
    "seconds": "seconds",
    "trainings": "in trainings",
}


def removed(teaching: Teaching, effects: dict[str, Row], method: str, percentage: int, order: int) -> np.ndarray:
    """Rows of a percentage of the training set: whole groups in a method's order, the last one cut."""
    groups, problem = teaching.groups(), teaching.problem
    if method == "random":
        ranked = np.random.default_rng([problem.setup.seed, 11, order]).permutation(len(groups))
    else:
        ranked = np.argsort(effects[method]["effects"], kind="stable")
    rows: np.ndarray = np.concatenate([groups[k] for k in ranked])[: round(percentage / 100 * len(problem.train))]
    return rows


def _row(teaching: Teaching, effects: dict[str, Row], method: str, before: float) -> Row:
    problem = teaching.problem
    seconds = 0.0 if method == "random" else effects[method]["seconds"]
    facts: Row = {"method": method, "title": TITLES[method], "accuracy_0": before}
    for percentage in PERCENTAGES:
        asked = [
            (removed(teaching, effects, method, percentage, order), order) for order in range(problem.setup.orders)
        ]
        students = [teaching.accuracy(state) for state in teaching.students(asked)]
        teachers = [teaching.teacher_accuracy(next(teaching.exact.states([rows], order))) for rows, order in asked]
        facts |= {
            f"accuracy_{percentage}": float(np.mean(students)),
            f"accuracy_{percentage}_all": students,
            f"teacher_{percentage}": float(np.mean(teachers)),
        }
    if method != "random":
        found, true = (np.asarray(effects[name]["effects"])[:, None] for name in (method, "exact"))
        facts |= {"rho_exact": mean_spearman(found, true), "effects": effects[method]["effects"]}
    return facts | {"seconds": seconds, "trainings": seconds / problem.training_seconds}


def _notes(teaching: Teaching, before: float) -> list[str]:
    problem = teaching.problem
    usual = [(next(problem.exact.states([NOTHING], order)), order) for order in range(problem.setup.orders)]
    after = float(np.mean([teaching.accuracy(state) for state in teaching.taught(usual)]))
    normal = float(np.mean([teaching.teacher_accuracy(state) for state, _ in usual]))
    own = [next(teaching.exact.states([NOTHING], order)) for order in range(problem.setup.orders)]
    nasty = float(np.mean([teaching.teacher_accuracy(state) for state in own]))
    beyond = (after - before) - (normal - nasty)
    return [
        f"Accuracy on the {len(problem.data.test):,} test samples of students, mean over {problem.setup.orders} batch "
        "orders of teacher and student. Data are removed from the teacher's training alone, in the order in which a "
        "method says that removing a group lowers KL(teacher ‖ student) on validation samples, most first; students "
        "see all inputs.",
        f"The teacher: CE − ω T² KL(teacher ‖ usual network), ω {WEIGHT:g}, T {TEMPERATURE:g}, with the usual "
        "network's softened predictions averaged over each class. Students: ConvNet of half the width, α "
        f"{BALANCE:g}, T {TEMPERATURE:g}.",
        f"The teacher scores {nasty:.3f} and its student {before:.3f}; a usual network {normal:.3f} and its student "
        f"{after:.3f}: beyond what the teacher itself lost, its student loses {beyond:+.3f}, with a standard error of "
        f"about {_error(problem, before):.3f} from the size of the test split. If that is not clearly above 0, the "
        "teacher is only worse, not harder to distil.",
        "The paper's table is of CIFAR-10 with a ResNet-18; it does not say how its teacher or student were trained.",
    ]


def _error(problem: Problem, accuracy: float) -> float:
    return float(np.sqrt(accuracy * (1 - accuracy) / len(problem.data.test)))


def _described(teaching: Teaching) -> str:
    setup, teacher = teaching.problem.setup, teaching.teacher
    pixels = f" at {setup.size}×{setup.size} pixels" if setup.size else ""
    return (
        f"{setup.data}, {len(teaching.problem.train):,} training images{pixels}, {type(teacher.network).__name__} of "
        f"{teacher.flat.size:,} parameters, {len(teaching.partition)} groups"
    )


def _outputs(network: nn.Module, samples: Samples) -> Tensor:
    """Logits ``(n, L)`` of a network in evaluation mode."""
    parts = torch.arange(len(samples)).split(512)
    with torch.no_grad():
        return torch.cat([network(samples.batch(rows)[0]) for rows in parts])


def _hash(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
