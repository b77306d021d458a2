"""``transfer`` (the paper's supplement): which training data make a teacher hard to distil into a student?

The teacher is trained to be hard to distil ("knowledge undistillation"): besides learning the labels, its predictions
are pushed away from those of a normally trained network. The benchmark removes data from the teacher's training and
measures the accuracy of its students.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm import networks
from ddm.answers.objectives import Objective, distillation
from ddm.bench.fidelity import describe_problem
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import NO_ROWS, Problem
from ddm.bench.setup import short_hash
from ddm.compute import engine
from ddm.compute.files import read_json_object, write_json
from ddm.compute.tensors import read_tensors, write_tensors
from ddm.data.samples import Samples
from ddm.datamodel import DistilledDatamodel
from ddm.groups.partition import Partition, make_partition
from ddm.networks.state import State, hash_of_state, load_state, state_of
from ddm.training.loop import train
from ddm.training.recipe import Recipe
from ddm.training.target import Target, accuracy_of
from ddm.truth.figures import mean_spearman
from ddm.truth.retraining import Retraining, group_rows

WEIGHT, TEMPERATURE, BALANCE = 0.08, 4.0, 0.9
"""ω and T of undistillation; α of distillation, which uses the same T."""

PERCENTAGES = (10, 20, 30, 40)

_DIGITS = 16
"""Length of the hashes in file names."""

_CLUSTERS = 3
"""Maximum clusters per class; they are few because the teacher is retrained without each of them."""

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
"""Student accuracies in % on CIFAR-10 with a ResNet-18, in the order of the columns."""


class Undistillable:
    """CE(f, y) − ω T² KL(softmax(f/T) ‖ s_y), a loss for labels ``(b,)`` or soft targets ``(b, L)``.

    softened: ``(L, L)`` s_l, the mean softened prediction of a normally trained network for the samples of class l.
              The divergence is linear in a soft target, as cross-entropy is.
    """

    def __init__(self, softened: Tensor, weight: float = WEIGHT, temperature: float = TEMPERATURE) -> None:
        self.logs, self.weight, self.temperature = softened.log(), weight, temperature

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch."""
        logs = self.logs.to(logits)
        normal = labels @ logs if labels.is_floating_point() else logs[labels]
        own = (logits / self.temperature).log_softmax(-1)
        apart = (own.exp() * (own - normal)).sum(-1).mean()
        return F.cross_entropy(logits, labels) - self.weight * self.temperature**2 * apart


@dataclass(frozen=True)
class StudentTask:
    """A student to train on samples with the teacher's logits ``(n, L)``.

    path: the file of the trained student
    """

    path: Path
    network: nn.Module
    samples: Samples
    teacher: Tensor
    recipe: Recipe


def train_student(task: StudentTask) -> None:
    """Train a student on (1 − α) CE + α T² KL(teacher ‖ student), both softened, and store it."""
    started = time.perf_counter()
    network, samples, recipe = task.network, task.samples, task.recipe
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    generator = torch.Generator().manual_seed(recipe.seed)
    softened = (task.teacher / TEMPERATURE).log_softmax(-1)
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
    write_tensors(task.path, state_of(network), {"seconds": time.perf_counter() - started})


class TeacherStudy:
    """The teacher of a problem with its groups, retrainings and students, computed on demand and cached."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        key = short_hash([problem.setup.training_key(), WEIGHT, TEMPERATURE], _DIGITS)
        self.folder = problem.work / f"teacher-{key}"

    @cached_property
    def teacher(self) -> Target:
        """The teacher, trained on one thread to be hard to distil."""
        problem = self.problem
        x, y = problem.train.batch()
        softened = (problem.target.outputs(x) / TEMPERATURE).softmax(-1).cpu()
        uniform = torch.full_like(softened[0], 1 / softened.shape[1])
        means = [softened[y == label].mean(0) if (y == label).any() else uniform for label in range(softened.shape[1])]
        loss = Undistillable(torch.stack(means))
        return next(iter(engine.run_tasks(_TrainTeacher(problem, loss, self.folder / "trajectory"), [0], workers=1)))

    @cached_property
    def partition(self) -> Partition:
        """The groups, clustered in the teacher's own features."""
        setup = self.problem.setup
        clusters = min(setup.clusters, _CLUSTERS)
        return make_partition(self.teacher, self.problem.train, setup.partition, clusters, seed=setup.seed)

    @cached_property
    def exact(self) -> Retraining:
        """Retrains the teacher."""
        return Retraining(self.teacher, self.problem.train, self.folder / "exact", engine=self.problem.engine)

    @cached_property
    def objective(self) -> Objective:
        """KL(teacher ‖ student) on the validation samples, for the student of the teacher trained on all data."""
        (state,) = self.students_without([(NO_ROWS, 0)])
        return distillation(_logits(self._student(state), self.problem.validation))

    def groups(self) -> list[np.ndarray]:
        """Row numbers of each group."""
        return group_rows(self.partition, np.eye(len(self.partition), dtype=bool))

    def group_effects(self, method: str) -> Row:
        """Effects ``(K,)`` of the groups on the objective by a method, and the seconds it took."""
        path = self.folder / f"effects-{short_hash([self.problem.setup.key(), BALANCE, method], _DIGITS)}.json"
        if not path.exists():
            started = time.perf_counter()
            effects = self._exact_effects() if method == "exact" else self._datamodel_effects(method, path)
            seconds = time.perf_counter() - started
            if method == "exact":
                seconds = self.exact.mean_seconds(self.groups()) * len(self.partition)
            write_json(path, {"effects": effects, "seconds": seconds})
        row: Row = read_json_object(path)
        return row

    def students_without(self, removals: Sequence[tuple[np.ndarray, int]]) -> list[State]:
        """The student of a teacher trained without some rows, for each (rows, batch order)."""
        return self.students_of([(next(self.exact.states([rows], order)), order) for rows, order in removals])

    def students_of(self, teachers: Sequence[tuple[State, int]]) -> list[State]:
        """The student of each (teacher, batch order)."""
        tasks = [self._student_task(state, order) for state, order in teachers]
        missing = {task.path: task for task in tasks if not task.path.exists()}
        for _ in engine.run_tasks(train_student, list(missing.values()), description="students"):
            pass
        return [read_tensors(task.path) for task in tasks]

    def student_accuracy(self, student: State) -> float:
        """Test accuracy of a student."""
        return accuracy_of(self._student(student), self.problem.data.test)

    def teacher_accuracy(self, state: State) -> float:
        """Test accuracy of a teacher."""
        network = self.problem.network.eval()
        load_state(network, state)
        return accuracy_of(network, self.problem.data.test)

    def _datamodel_effects(self, method: str, path: Path) -> list[float]:
        datamodel = DistilledDatamodel.fit(
            self.teacher,
            self.problem.train,
            partition=self.partition,
            settings=settings_of(self.problem, method),
            directory=path.with_suffix(".parts"),
        )
        scores = datamodel.attribute(self.problem.validation, self.objective).scores
        effects: list[float] = np.nan_to_num(scores).tolist()
        return effects

    def _exact_effects(self) -> list[float]:
        x, y = self.problem.validation.batch()
        outputs = self.exact.outputs([NO_ROWS, *self.groups()], 0, x)
        values = self.objective.values([outputs], outputs[0], y)[:, 0]
        effects: list[float] = (values[1:] - values[0]).tolist()
        return effects

    def _student_task(self, teacher: State, order: int) -> StudentTask:
        problem, network = self.problem, self._new_student()
        recipe = problem.setup.recipe.with_order(order)
        facts = [hash_of_state(teacher), recipe.to_dict(), network.spec, BALANCE, TEMPERATURE]
        path = self.folder / "students" / f"{short_hash(facts, _DIGITS)}.safetensors"
        logits = torch.empty(0)
        if not path.exists():
            network_of_teacher = problem.network.eval()
            load_state(network_of_teacher, teacher)
            logits = _logits(network_of_teacher, problem.train)
        return StudentTask(path, network, problem.train, logits, recipe)

    def _new_student(self) -> networks.Network:
        """A ConvNet of half the teacher's width (or of half the default width), with other initial weights."""
        setup, options = self.problem.setup, self.problem.setup.options
        width, depth = max(1, options.get("width", 128) // 2), options.get("depth", 3)
        return networks.ConvNet(
            self.problem.train.shape, len(self.problem.data.classes), width=width, depth=depth, seed=setup.seed + 1
        )

    def _student(self, state: State) -> nn.Module:
        network = self._new_student().eval()
        load_state(network, state)
        return network


class _TrainTeacher:
    """A worker task that trains the teacher."""

    def __init__(self, problem: Problem, loss: Undistillable, directory: Path) -> None:
        self.problem, self.loss, self.directory = problem, loss, directory

    def __call__(self, _: int) -> Target:
        setup = self.problem.setup
        return train(self.problem.network, self.problem.train, setup.recipe, loss=self.loss, directory=self.directory)


def run(problem: Problem) -> Report:
    """Measure the accuracy of students whose teacher was trained without the groups that make it hard to distil."""
    study = TeacherStudy(problem)
    orders = range(problem.setup.orders)
    study.exact.run([NO_ROWS], orders)
    effects = {method: study.group_effects(method) for method in TITLES if method != "random"}
    removals = [
        (removed_rows(study, effects, method, percentage, order), order)
        for method in TITLES
        for percentage in PERCENTAGES
        for order in orders
    ]
    for order in orders:
        study.exact.run([rows for rows, own_order in removals if own_order == order], [order])
    full = [(NO_ROWS, order) for order in orders]
    study.students_without([*full, *removals])
    before = float(np.mean([study.student_accuracy(state) for state in study.students_without(full)]))
    caption = describe_problem(problem, study.partition)
    return Report(
        "transfer",
        f"Student accuracy after removing data that make the teacher hard to distil: {caption}",
        [_row(study, effects, method, before) for method in TITLES],
        COLUMNS,
        notes=_notes(study, before),
        reference={
            "test accuracy of the teacher": study.teacher.accuracy(problem.data.test),
            "test accuracy of a usual network": problem.target.accuracy(problem.data.test),
            "seconds of one training": problem.training_seconds,
            "groups": len(study.partition),
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
    "trainings": "cost in trainings",
}


def removed_rows(study: TeacherStudy, effects: dict[str, Row], method: str, percentage: int, order: int) -> np.ndarray:
    """Row numbers of a percentage of the training set: whole groups in the order of a method, the last one in part."""
    groups, problem = study.groups(), study.problem
    if method == "random":
        ranked = np.random.default_rng([problem.setup.seed, 11, order]).permutation(len(groups))
    else:
        ranked = np.argsort(effects[method]["effects"], kind="stable")
    rows: np.ndarray = np.concatenate([groups[k] for k in ranked])[: round(percentage / 100 * len(problem.train))]
    return rows


def _row(study: TeacherStudy, effects: dict[str, Row], method: str, before: float) -> Row:
    problem = study.problem
    seconds = 0.0 if method == "random" else effects[method]["seconds"]
    facts: Row = {"method": method, "title": TITLES[method], "accuracy_0": before}
    for percentage in PERCENTAGES:
        removals = [
            (removed_rows(study, effects, method, percentage, order), order) for order in range(problem.setup.orders)
        ]
        students = [study.student_accuracy(state) for state in study.students_without(removals)]
        teachers = [study.teacher_accuracy(next(study.exact.states([rows], order))) for rows, order in removals]
        facts |= {
            f"accuracy_{percentage}": float(np.mean(students)),
            f"accuracy_{percentage}_all": students,
            f"teacher_{percentage}": float(np.mean(teachers)),
        }
    if method != "random":
        predicted, true = (np.asarray(effects[name]["effects"])[:, None] for name in (method, "exact"))
        facts |= {"rho_exact": mean_spearman(predicted, true), "effects": effects[method]["effects"]}
    return facts | {"seconds": seconds, "trainings": seconds / problem.training_seconds}


def _notes(study: TeacherStudy, before: float) -> list[str]:
    problem = study.problem
    usual = [(next(problem.exact.states([NO_ROWS], order)), order) for order in range(problem.setup.orders)]
    after = float(np.mean([study.student_accuracy(state) for state in study.students_of(usual)]))
    normal = float(np.mean([study.teacher_accuracy(state) for state, _ in usual]))
    teachers = [next(study.exact.states([NO_ROWS], order)) for order in range(problem.setup.orders)]
    nasty = float(np.mean([study.teacher_accuracy(state) for state in teachers]))
    beyond = (after - before) - (normal - nasty)
    return [
        f"Accuracy of students on {len(problem.data.test):,} test samples, averaged over {problem.setup.orders} batch "
        "orders of teacher and student. Data are removed only from the teacher's training; students see all inputs. "
        "Each method ranks groups by how much their removal lowers KL(teacher ‖ student) on validation samples, and "
        "the group with the largest reduction is removed first.",
        f"The teacher minimises CE − ω T² KL(teacher ‖ usual network) with ω = {WEIGHT:g} and T = {TEMPERATURE:g}; the "
        "usual network's softened predictions are averaged over each class. Students are ConvNets of half the width, "
        f"with α = {BALANCE:g} and T = {TEMPERATURE:g}.",
        f"The teacher has accuracy {nasty:.3f} and its student {before:.3f}. A usual network has {normal:.3f} and its "
        f"student {after:.3f}. So the student loses {beyond:+.3f} more than the teacher itself, with a standard error "
        f"of about {_standard_error(problem, before):.3f} from the size of the test split. If this is not clearly "
        "above 0, the teacher is worse, but not harder to distil.",
        "The paper's numbers are from CIFAR-10 with a ResNet-18. It does not say how teacher and student were trained.",
    ]


def _standard_error(problem: Problem, accuracy: float) -> float:
    return float(np.sqrt(accuracy * (1 - accuracy) / len(problem.data.test)))


def _logits(network: nn.Module, samples: Samples) -> Tensor:
    """Logits ``(n, L)`` of a network in evaluation mode."""
    parts = torch.arange(len(samples)).split(512)
    with torch.no_grad():
        return torch.cat([network(samples.batch(rows)[0]) for rows in parts])
