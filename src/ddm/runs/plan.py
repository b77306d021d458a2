"""Estimate the time, memory and disk space of a fit: short trials of each stage, scaled to the amount of work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from ddm.compute import progress, stopwatch
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine
from ddm.compute.memory import resident_bytes
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.distil import MatchingEstimate, estimate_matching
from ddm.groups.features import features_of
from ddm.groups.partition import Partition, kmeans, make_partition, sequential
from ddm.networks.state import state_of
from ddm.runs.config import Config
from ddm.runs.inputs import load_data, read_groups
from ddm.training.loop import build_network, train
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory

_TRIAL_SAMPLES = 2000
"""Maximum samples in the trial of k-means."""


@dataclass(frozen=True)
class Estimate:
    """The time, memory and disk space that a fit needs.

    seconds: time of each stage
    memory:  peak bytes of this process and its workers together, including the data
    workers: number of worker processes on this machine
    disk:    bytes of the run directory
    kept:    bytes of the kept responses; 0 if none are kept
    synset:  seconds of the matching that the synset takes, and that a fit without it saves
    """

    seconds: dict[str, float]
    memory: int
    workers: int
    disk: int
    kept: int
    synset: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {"seconds": self.seconds | {"all": sum(self.seconds.values())}}


def estimate(config: Config, engine: Engine = None) -> Estimate:
    """The cost of fitting ``config`` on this machine, within a factor of two; writes nothing."""
    if Backend.parse(engine).remote:
        progress.note("The plan assumes that the cluster has as many cores as this machine.")
    empty = resident_bytes()
    data = load_data(config)
    task = Task(data.task)
    network = build_network(config.model, data.train, task, config.options)
    groups = read_groups(config, data)
    with progress.silent():
        training = _time_training(network, data.train, config, task)
        target = _stand_in_target(network, data.train, config, task)
        partition = _stand_in_partition(data.train, config, target, groups)
        matching = estimate_matching(target, data.train, partition, config.settings, engine)
        seconds = {
            "training": training,
            "partition": _time_clustering(data.train, config, target),
            "matching": matching.seconds,
        }
    memory = resident_bytes() + matching.memory + matching.workers * (empty + matching.worker_bytes)
    disk = _disk(target, matching)
    return Estimate(seconds, memory, matching.workers, disk, matching.kept_bytes, matching.encoding)


def _time_training(network: nn.Module, samples: Samples, config: Config, task: Task) -> float:
    """Seconds of the training, scaled up from a few batches; the first trial also pays for loading libraries."""
    recipe = replace(config.recipe, epochs=1, checkpoint_every=None)
    count = min(len(samples), 2 * recipe.batch_size)
    first = stopwatch.time_once(partial(train, network, samples[:count], recipe, task=task, device=config.device))
    while True:
        passed = stopwatch.time_once(partial(train, network, samples[:count], recipe, task=task, device=config.device))
        if passed >= stopwatch.MIN_SECONDS or count == len(samples):
            return first + passed / count * len(samples) * config.recipe.epochs
        count = min(len(samples), 2 * count)


def _stand_in_target(network: nn.Module, samples: Samples, config: Config, task: Task) -> Target:
    """A target with as many checkpoints as the real one will have, all of them θ_0."""
    steps = math.ceil(len(samples) / config.recipe.batch_size) * config.recipe.epochs
    every = config.recipe.checkpoint_every or math.ceil(steps / config.recipe.epochs)
    first = Trajectory()
    first.append(state_of(network), 0, 0.0)
    trajectory = first.select([0] * (1 + math.ceil(steps / every)))
    trajectory.steps = [min(t * every, steps) for t in range(len(trajectory))]
    trajectory.cumulative_rates = [config.recipe.rate * step for step in trajectory.steps]
    return Target(network, trajectory, task, config.recipe, config.device)


def _stand_in_partition(samples: Samples, config: Config, target: Target, groups: np.ndarray | None) -> Partition:
    """A partition with the same number of groups, of about the same sizes, as the real one."""
    if groups is None and config.partition == "kmeans":
        return sequential(samples, config.clusters)
    kind = config.partition if groups is None else groups
    return make_partition(target, samples, kind, config.clusters, None, config.settings.seed)


def _time_clustering(samples: Samples, config: Config, target: Target) -> float:
    """Seconds of features and k-means, scaled up from samples of the largest class, plus loading libraries."""
    if config.groups is not None or samples.groups is not None or config.partition != "kmeans":
        return 0.0
    some = samples[_largest_class(samples)[:_TRIAL_SAMPLES]]
    first = stopwatch.time_once(lambda: kmeans(some[:2], np.zeros((2, 1)), 1))
    passed = stopwatch.time_once(lambda: kmeans(some, features_of(some, config.features, target), config.clusters))
    return first + passed * len(samples) / len(some)


def _largest_class(samples: Samples) -> np.ndarray:
    """Positions of the samples of the largest class, or of all if they have no classes."""
    if not samples.has_classes:
        return np.arange(len(samples))
    labels = samples.labels.numpy()
    return np.flatnonzero(labels == np.bincount(labels).argmax())


def _disk(target: Target, matching: MatchingEstimate) -> int:
    """Bytes of the checkpoints, of the last training state, and of the synsets and responses with their blocks."""
    state = sum(tensor.nbytes for tensor in target.trajectory[0].values())
    return state * (len(target.trajectory) + 2) + 2 * (matching.synset_bytes + matching.kept_bytes)
