"""What a fit would take: time, memory and disk, from short trials of each kind of work, times how often it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ddm import networks
from ddm.compute import progress
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine, count_cores, one_thread
from ddm.compute.memory import resident_bytes
from ddm.curvature.gradients import loss_gradient
from ddm.data.samples import Data, Samples
from ddm.distil.blocks import plan
from ddm.distil.gradient.match import Distilled
from ddm.distil.gradient.matching import MATCHINGS, SYNTHETIC, GradientMatching
from ddm.distil.matching import engine_for
from ddm.distil.response.encode import bank_bytes
from ddm.distil.response.matching import ResponseMatching
from ddm.groups.partition import Partition, features_of, kmeans, make_partition, sequential
from ddm.networks.flat import state_of
from ddm.runs.config import Config
from ddm.runs.inputs import load_data, read_groups
from ddm.training.loop import train
from ddm.training.optimizers import OPTIMIZERS
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory

_LONG_ENOUGH = 0.3
"""Seconds of a trial, at least."""

_STEPS = 4
"""Of a trial of matching."""

_CLUSTERED = 2000
"""Samples of a trial of k-means."""


@dataclass(frozen=True)
class Estimate:
    """What a fit would take.

    seconds: of each stage
    memory:  bytes of this process and its workers at their largest, the data among them
    workers: processes that it starts on this machine
    disk:    bytes of the run
    """

    seconds: dict[str, float]
    memory: int
    workers: int
    disk: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {"seconds": self.seconds | {"all": sum(self.seconds.values())}}


def estimate(config: Config, engine: Engine = None) -> Estimate:
    """What the fit of ``config`` would take on this machine, right to a factor of two; nothing is written."""
    if Backend.parse(engine).remote:
        progress.note("The plan takes the cluster to have as many cores as this machine.")
    empty = resident_bytes()
    data = load_data(config)
    network = networks.build(config.model, data.train.shape, len(data.classes), **config.options)
    own = read_groups(config, data)
    with progress.silent():
        training = _training(network, data.train, config)
        target = _stand_in(network, data.train, config)
        partition = _stand_in_partition(data.train, config, target, own)
        fit = _Fit(config, data, target, partition, engine)
        seconds = {
            "training": training,
            "partition": _clustering(data.train, config, target),
            "matching": fit.seconds(),
        }
    memory = resident_bytes() + fit.memory + fit.workers * (empty + fit.sent)
    return Estimate(seconds, memory, fit.workers, fit.disk)


def _training(network: nn.Module, samples: Samples, config: Config) -> float:
    """Seconds of the training, from a short one of a few batches; the first of all also loads what it needs."""
    recipe = replace(config.recipe, epochs=1, checkpoint_every=None)
    count = min(len(samples), 2 * recipe.batch_size)
    first = _timed(partial(train, network, samples[:count], recipe, device=config.device))
    while True:
        passed = _timed(partial(train, network, samples[:count], recipe, device=config.device))
        if passed >= _LONG_ENOUGH or count == len(samples):
            return first + passed / count * len(samples) * config.recipe.epochs
        count = min(len(samples), 2 * count)


def _stand_in(network: nn.Module, samples: Samples, config: Config) -> Target:
    """A target with as many checkpoints as the real one will have, all of them θ_0."""
    steps = math.ceil(len(samples) / config.recipe.batch_size) * config.recipe.epochs
    every = config.recipe.checkpoint_every or math.ceil(steps / config.recipe.epochs)
    first = Trajectory()
    first.append(state_of(network), 0, 0.0)
    trajectory = first.select([0] * (1 + math.ceil(steps / every)))
    trajectory.steps = [min(t * every, steps) for t in range(len(trajectory))]
    rate = OPTIMIZERS[config.recipe.optimizer].effective_rate(config.recipe, config.recipe.rate)
    trajectory.cumulative_rates = [rate * step for step in trajectory.steps]
    return Target(network, trajectory, recipe=config.recipe, device=config.device)


def _stand_in_partition(samples: Samples, config: Config, target: Target, own: np.ndarray | None) -> Partition:
    """Groups as many and as large as those of the real partition, on the whole."""
    if own is None and config.partition == "kmeans":
        return sequential(samples, config.clusters)
    kind = config.partition if own is None else own
    return make_partition(target, samples, kind, config.clusters, None, config.settings.seed)


def _clustering(samples: Samples, config: Config, target: Target) -> float:
    """Seconds of features and k-means, by those of some samples of a class, and of loading what they need."""
    if config.groups is not None or config.partition != "kmeans":
        return 0.0
    labels = samples.labels.numpy()
    some = samples[np.flatnonzero(labels == np.bincount(labels).argmax())[:_CLUSTERED]]
    first = _timed(lambda: kmeans(some[:2], np.zeros((2, 1)), 1))
    passed = _timed(lambda: kmeans(some, features_of(some, config.features, target), config.clusters))
    return first + passed * len(samples) / len(some)


class _Fit:
    """The matching of a stand-in for the target, whose work is counted and tried, not done."""

    def __init__(self, config: Config, data: Data, target: Target, partition: Partition, place: Engine) -> None:
        self.target, self.samples, self.partition, self.settings = target, data.train, partition, config.settings
        self.upper = partition.by_class()
        kind = ResponseMatching if self.settings.matching == "response" else GradientMatching
        self.work = kind(target, self.samples, self.settings)
        self.blocks = plan(partition, self.work.bytes_per_group, self.settings.memory, self.work.max_block_groups)
        self.passes = sum(self.work.cost(partition, self.upper, block) for block in self.blocks)
        self.place = Backend.parse(engine_for(place, target, self.passes))

    @cached_property
    def _cores(self) -> int:
        """Pieces that are worked on at once."""
        if self.place.kind == "serial":
            return 1
        if isinstance(self.work, GradientMatching) and not self.place.remote:
            return min(self.work.workers(self.blocks), len(self.blocks))
        return count_cores()

    @property
    def workers(self) -> int:
        """Processes that are started on this machine."""
        return 0 if self.place.remote or self._cores == 1 else self._cores

    @property
    def sent(self) -> int:
        """Bytes of samples that a worker holds: all, or those of a few groups."""
        all_of_them = self.samples.raw.nbytes + self.samples.labels.nbytes
        return all_of_them if isinstance(self.work, GradientMatching) else all_of_them // len(self.partition)

    def seconds(self) -> float:
        """Of all blocks."""
        if isinstance(self.work, ResponseMatching):
            return self._response_seconds(self.work)
        synthetic = sum(map(self.work.synthetic, self.blocks))
        real = self.passes - SYNTHETIC * synthetic
        return (real * self._pass + synthetic * self._synthetic(self.work)) / self._cores

    def _response_seconds(self, work: ResponseMatching) -> float:
        """Of the pulls in pieces, and of what stays in this process: looks, rows and products."""
        looks = sum(block.size for block in self.blocks) * self._look(work)
        products = self._multiplications(work) * _multiplication()
        return self.passes * self._pass / self._cores + looks + self._rows(work) * self._row(work) + products

    @cached_property
    def _pass(self) -> float:
        """Seconds of a sample forward and back, on one thread as in all pieces."""
        x, y = self.samples.batch(self.partition.rows(0)[: self.settings.samples])
        theta, fixed = self.target.at(0)
        with one_thread():
            return _repeated(lambda: loss_gradient(self.target, theta, fixed, x, y)) / len(x)

    def _synthetic(self, work: GradientMatching) -> float:
        """Seconds of matching a synthetic sample once, by a few steps for the clusters and the classes of a block."""
        block = max(self.blocks, key=lambda block: block.size)
        levels = [self._trial(work, len(groups)) for groups in (block.clusters, block.classes) if groups]
        with one_thread():
            passed = _repeated(lambda: [match() for match in levels])
        return passed / (len(work.pairs[:_STEPS]) * block.size * self.settings.ipc)

    def _trial(self, work: GradientMatching, groups: int) -> Callable[[], object]:
        """A few steps of matching for so many groups, towards nothing in particular."""
        settings, theta = self.settings, self.target.theta
        start = Distilled(
            torch.randn(groups, settings.ipc, *self.samples.shape).to(theta),
            torch.full((groups, settings.ipc, len(self.samples.classes)), 0.5).to(theta),
        )
        wanted = dict.fromkeys(work.checkpoints, theta.expand(groups, -1))
        pairs, names = work.pairs[:_STEPS], [""] * groups
        match = MATCHINGS[settings.matching]
        return partial(match, self.target, wanted, pairs, start, names, settings, lambda amount: None)

    def _look(self, work: ResponseMatching) -> float:
        """Seconds of a group's own curvature, found in this process, beyond the passes that it is counted as."""
        rows = self.partition.rows(0)
        return max(
            0.0,
            _repeated(lambda: work.responses.own_curvature(self.target.theta[None], [rows]))
            - work.responses.own_passes(rows) * self._pass / self._cores,
        )

    def _row(self, work: ResponseMatching) -> float:
        """Seconds of a row of curvature, or of a Jacobian."""
        made: list[int] = []
        passed = _repeated(lambda: made.append(work.responses.curvature.try_rows()))
        return passed / made[0]

    def _rows(self, work: ResponseMatching) -> float:
        """How many are made, some of them again."""
        curvature, encoder = work.responses.curvature, work.encoder
        parts = len(encoder.slices(encoder.first))
        encoding = (self._bank + len(encoder.metric)) * (parts if parts == 1 else parts + len(self.blocks))
        return curvature.cost.rows + curvature.cost.rows_per_solve * len(self.blocks) + encoding

    def _multiplications(self, work: ResponseMatching) -> float:
        """Of the products and solves."""
        size, groups = self.target.flat.size, sum(block.size for block in self.blocks)
        solve, bank = work.responses.curvature.cost, self._bank
        seen = len(work.encoder.metric)
        squares = bank**2 * (seen + bank / 3)  # half of each, in double precision
        encoding = squares + size * bank * (bank / 2 + seen + groups)
        return solve.multiplications + groups * solve.multiplications_per_vector + encoding

    @property
    def _bank(self) -> int:
        """Images × classes, somewhere between what a bank starts with and what it may grow to."""
        assert isinstance(self.work, ResponseMatching)
        encoder = self.work.encoder
        return int((encoder.first * encoder.most) ** 0.5) * encoder.classes

    @property
    def memory(self) -> int:
        """Bytes of blocks and what they share, beside the data and the network."""
        block = max(block.size for block in self.blocks) * self.work.bytes_per_group
        if isinstance(self.work, ResponseMatching):
            return block + self._shared_bytes(self.work)
        return block * max(1, self.workers)

    def _shared_bytes(self, work: ResponseMatching) -> int:
        """Of the curvature and of the bank; rows of curvature that do not fit are gone before the bank is made."""
        cost, bank = work.responses.curvature.cost, self._bank_bytes(work)
        return cost.factor_bytes + (cost.row_bytes + bank if cost.keeps_rows else max(cost.row_bytes, bank))

    def _bank_bytes(self, work: ResponseMatching) -> int:
        """Of the bank's Jacobian, and of the products with it."""
        rows, encoder = self._bank, work.encoder
        jacobian = min(4 * rows * self.target.flat.size, int(self.settings.memory * 2**29))
        return jacobian + encoder.metric_bytes + bank_bytes(rows, len(encoder.metric))

    @property
    def disk(self) -> int:
        """Bytes of the trajectory, of its last state with the optimiser's, and of synsets with their parts."""
        state = sum(tensor.nbytes for tensor in self.target.trajectory[0].values())
        groups = len(self.partition) + (0 if self.upper is None else len(self.upper))
        return int(state * (len(self.target.trajectory) + 2) + 2 * self._synset(groups))

    def _synset(self, groups: int) -> int:
        """Bytes of a synset of so many groups."""
        pixels, classes = math.prod(self.samples.shape), len(self.samples.classes)
        if isinstance(self.work, ResponseMatching):
            return 4 * self._bank // classes * (pixels + groups * classes)
        return 4 * groups * self.settings.ipc * (pixels + classes)


def _multiplication() -> float:
    """Seconds of a multiplication and addition within a product of matrices."""
    side = 512
    matrix = torch.ones(side, side)
    return _repeated(lambda: matrix @ matrix) / side**3


def _repeated(work: Callable[[], object]) -> float:
    """Seconds of some work, the mean of a few trials after a first."""
    passed, trials = 0.0, 0
    work()
    while passed < _LONG_ENOUGH:
        passed, trials = passed + _timed(work), trials + 1
    return passed / trials


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
