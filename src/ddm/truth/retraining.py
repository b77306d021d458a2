"""Exact unlearning 𝒰: retraining from θ_0 without some samples, with the same recipe. The ground truth.

Each retrained model is saved as soon as its training ends. Its file name is a hash of everything that determines it, so
a killed process resumes and nothing is trained twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.compute import engine
from ddm.compute.engine import Engine
from ddm.compute.tensors import read_intact, read_metadata, read_tensors, write_tensors
from ddm.curvature.gradients import loss_gradient
from ddm.data.inputs import X, parts
from ddm.data.samples import Samples
from ddm.data.tasks import TASKS, Task
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.networks.state import State, architecture, check_state, hash_of_state, state_of
from ddm.training.loop import train
from ddm.training.recipe import Recipe
from ddm.training.target import Target
from ddm.truth.code_hash import hash_of_code

Retrain = Callable[[np.ndarray, int], nn.Module]
"""``retrain(rows, order)`` trains again without the samples at ``rows`` and returns the network. Batch order 0 is the
target's own; 1, 2, … are others."""

NO_ROWS = np.array([], dtype=np.int64)
"""The empty removal: the retraining on all samples that the others are compared with."""


class Retraining:
    """Retrains a target without some of its training samples, on demand.

    target:    provides θ_0 and the recipe
    samples:   the training set of the target
    directory: where retrained models are saved
    retrain:   the user's own training loop; if its code changes, models are trained again
    workers:   local processes, one thread each (default: number of cores)
    engine:    where retraining runs, e.g. dask://HOST:PORT; models are always saved in ``directory``
    """

    def __init__(
        self,
        target: Target,
        samples: Samples,
        directory: Path | str,
        *,
        retrain: Retrain | None = None,
        workers: int | None = None,
        engine: Engine = None,
    ) -> None:
        if retrain is None and target.recipe is None:
            raise InputError(
                "this target was trained by a loop of your own: pass by= (or Retraining(…, retrain=)) a function of "
                "(positions of the samples to leave out, number of the batch order) that trains again and returns the "
                "network."
            )
        target.trajectory.check_complete()
        self.target, self.samples = target, samples
        self.directory = Path(directory).absolute()  # stays valid if the caller changes the working directory
        self.retrain, self.workers, self.engine = retrain, workers, engine
        self._origin = _origin(target, samples, retrain)

    def run(self, removals: Sequence[np.ndarray], orders: Sequence[int]) -> None:
        """Retrain without the rows of each removal, with each batch order, and skip models that are saved already."""
        jobs = self._missing(removals, orders)
        work = _Retrain(self._trainer())
        for name, state, seconds in engine.run_tasks(
            work, list(jobs.values()), engine=self.engine, workers=self.workers, description="retraining"
        ):
            job = jobs[name]
            write_tensors(
                self.directory / name, state, {"seconds": seconds, "order": job.order, "rows": job.rows.tolist()}
            )

    def count_missing(self, removals: Sequence[np.ndarray], order: int = 0) -> int:
        """Number of these models that are not saved yet."""
        return len(self._missing(removals, [order]))

    def _missing(self, removals: Sequence[np.ndarray], orders: Sequence[int]) -> dict[str, _Job]:
        jobs: dict[str, _Job] = {}
        for order in orders:
            for rows in removals:
                path = self._path(rows, order)
                if not path.exists():
                    jobs[path.name] = _Job(path.name, np.sort(rows), order)
        return jobs

    def made(self, partition: Partition) -> list[tuple[np.ndarray, int]]:
        """The saved retrainings without whole groups: the mask ``(K,)`` of the groups, and the batch order."""
        found = []
        for path in sorted(self.directory.glob("*.safetensors")):
            facts = read_metadata(path)
            rows, order = np.array(facts.get("rows", []), dtype=np.int64), facts.get("order", 0)
            if path != self._path(rows, order) or not len(rows):  # of another training, or of an older version
                continue
            removed = partition.removal_of(rows)
            if removed is not None:
                found.append((removed, order))
        return found

    def states(self, removals: Sequence[np.ndarray], order: int = 0) -> Iterator[State]:
        """Parameters and buffers of the models without each removal's rows."""
        self.run(removals, [order])
        for rows in removals:
            path = self._path(rows, order)
            state = read_intact(path, "delete it, and it is trained again")
            check_state(state, self.target.shapes, f"'{path}'")
            yield state

    def outputs(self, removals: Sequence[np.ndarray], order: int, x: X) -> Tensor:
        """Logits ``(M, n, L)`` of the models without each of M removals' rows, for inputs ``x (n, ...)``."""
        return torch.stack([self._forward(state, x) for state in self.states(removals, order)])

    def estimate_seconds(self) -> float | None:
        """Estimated seconds of one retraining, from the time of one step; None for the user's own loop."""
        recipe = self.target.recipe
        if self.retrain is not None or recipe is None:
            return None
        x, y = self.samples.batch(np.arange(min(recipe.batch_size, len(self.samples))))
        theta, fixed = self.target.at(0)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            loss_gradient(self.target, theta, fixed, x, y, recipe.batch_size)
            times.append(time.perf_counter() - started)
        return min(times) * recipe.epochs * math.ceil(len(self.samples) / recipe.batch_size)

    def affordable(self, seconds: float) -> int:
        """Number of retrainings that take about this many seconds, beside one on all samples; at least 1."""
        each = self.estimate_seconds()
        if each is None:
            raise InputError("the time of your own training loop is not known: give the number of retrainings instead.")
        at_once = self.workers or engine.count_cores()
        return max(1, int(seconds * at_once / max(each, 1e-3)) - 1)

    def mean_seconds(self, removals: Sequence[np.ndarray], order: int = 0) -> float:
        """Mean seconds of these retrainings on one thread, as measured when they ran."""
        self.run(removals, [order])
        return float(np.mean([_seconds(self._path(rows, order)) for rows in removals]))

    def parameter_bytes(self, removals: Sequence[np.ndarray], order: int = 0) -> int:
        """Size of the parameters and buffers of these models."""
        states = (read_tensors(self._path(rows, order)) for rows in removals)
        return sum(tensor.nbytes for state in states for tensor in state.values())

    def _forward(self, state: State, x: X) -> Tensor:
        flat, device = self.target.flat, self.target.device
        state = {name: tensor.to(device) for name, tensor in state.items()}
        theta, fixed = flat.vector(state), flat.fixed(state)
        with torch.no_grad():
            return torch.cat([flat(theta, fixed, part.to(device)) for part in parts(x, 512)]).cpu()

    def _trainer(self) -> Retrain:
        target = self.target
        if self.retrain is not None or target.recipe is None:
            assert self.retrain is not None
            return self.retrain
        return _Recipe(target.start(), self.samples, target.recipe, target.task, str(target.device))

    def _path(self, rows: np.ndarray, order: int) -> Path:
        text = json.dumps([self._origin, order, np.sort(rows).tolist()])
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


@contextlib.contextmanager
def open_retraining(
    target: Target,
    samples: Samples,
    directory: Path | str | None,
    retrain: Retrain | None,
    workers: int | None,
    engine: Engine,
) -> Iterator[Retraining]:
    """Retraining that saves its models in ``directory``, or in a temporary one."""
    with contextlib.ExitStack() as stack:
        folder = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="ddm-exact-"))
        yield Retraining(target, samples, folder, retrain=retrain, workers=workers, engine=engine)


def group_rows(partition: Partition, removed: np.ndarray) -> list[np.ndarray]:
    """Positions of the training samples that each perturbation ``removed (M, K)`` removes, each once."""
    return [partition.rows_without(row) for row in removed]


@dataclass(frozen=True)
class _Recipe:
    """Retrains a network with its recipe: the target's batches minus the removed samples."""

    network: nn.Module
    samples: Samples
    recipe: Recipe
    task: Task
    device: str

    def __call__(self, rows: np.ndarray, order: int) -> nn.Module:
        recipe = self.recipe.with_order(order)
        return train(self.network, self.samples, recipe, task=self.task, without=rows, device=self.device).network


@dataclass(frozen=True)
class _Job:
    name: str
    rows: np.ndarray
    order: int

    def __str__(self) -> str:
        return f"without {len(self.rows)} samples, batch order {self.order}"


@dataclass(frozen=True)
class _Retrain:
    """Runs a job; returns the file name, the trained state, and the seconds."""

    retrain: Retrain

    def __call__(self, job: _Job) -> tuple[str, State, float]:
        started = time.perf_counter()
        state = state_of(self.retrain(job.rows, job.order))
        seconds = time.perf_counter() - started
        return job.name, {name: tensor.cpu() for name, tensor in state.items()}, seconds


def _seconds(path: Path) -> float:
    """Seconds that a saved retraining took."""
    seconds = read_metadata(path).get("seconds")
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        raise InputError(f"'{path}' lacks its duration: delete it, and it is trained again.")
    return seconds


def _origin(target: Target, samples: Samples, retrain: Retrain | None) -> list[str]:
    """Text that identifies everything a retrained model depends on, except rows and batch order."""
    if retrain is None:
        how = json.dumps(target.recipe.to_dict(), sort_keys=True) if target.recipe is not None else ""
        start = hash_of_state(target.trajectory[0])
    else:
        how = f"own {hash_of_code(retrain)}"
        start = target.fingerprint()
    network = [
        architecture(target.network),
        str(target.network),
        *target.trained,
    ]
    return [*network, _loss_key(target.task), start, how, samples.fingerprint()]


def _loss_key(task: Task) -> str:
    """Text that identifies a loss: the name, and for another loss than the usual one its code and its options."""
    loss, original = task.loss, getattr(task.given, "original", task.given)
    if type(task) not in TASKS.values():
        return f"{loss.name} {hash_of_code(type(task))}"
    if original is None or original is F.cross_entropy:
        return loss.name
    if not isinstance(original, nn.Module):
        return f"{loss.name} {hash_of_code(original)}"
    options = {name: value for name, value in vars(original).items() if isinstance(value, (bool, int, float, str))}
    weights = hash_of_state(dict(original.state_dict()) | dict(original.named_buffers()))
    return f"{loss.name} {hash_of_code(type(original))} {sorted(options.items())} {weights}"
