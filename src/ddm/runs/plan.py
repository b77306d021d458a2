"""Estimate the time, memory and disk space of a training with its fit: short trials, scaled to the amount of work."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torch import nn

from ddm.compute import progress, stopwatch
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine
from ddm.compute.memory import resident_bytes
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.distil import plan as planning
from ddm.distil.plan import Estimate
from ddm.networks.state import state_of
from ddm.runs.config import Config
from ddm.runs.inputs import load_data, read_groups
from ddm.training.loop import build_network, train
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory


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
    kind = config.partition if groups is None else groups
    found = planning.estimate(
        target, data.train, config.clusters, kind, config.features, config.settings, engine, empty
    )
    return replace(found, seconds={"training": training, **found.seconds})


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
