"""The processor's time, which other work on the machine hardly changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ddm.bench.problem import Problem
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Samples
from ddm.files import read_json, write_json
from ddm.recipe import Recipe
from ddm.target import Target
from ddm.training import train

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What some work gives, and the processor's seconds that it took in this process."""
    started = time.process_time()
    found = work()
    return found, time.process_time() - started


def training(problem: Problem) -> float:
    """Seconds of the target's training, kept. A target that is there already is trained again for this alone."""
    path = problem.target_folder / "processor.json"
    train(problem.network, problem.train[:2], Recipe(epochs=1))  # what an optimiser imports takes seconds
    if not path.exists():
        write_json(path, {"seconds": timed(_whole_training(problem))[1]})
    return float(read_json(path)["seconds"])


def _whole_training(problem: Problem) -> Callable[[], object]:
    """That which makes the target, or, where some of it was made before, one that makes it from the beginning."""
    if not problem.target_folder.exists():
        return lambda: problem.target
    return lambda: train(problem.network, problem.train, problem.setup.recipe, loss=problem.loss)


class Asked(NamedTuple):
    """Seconds of one more question, and those beyond the passes of its sample forward and back."""

    whole: float
    beyond: float


def question(datamodel: DistilledDatamodel, test: Samples, count: int, fast: bool = False) -> Asked:
    """Medians of ``count`` questions after the first, each timed in turn with the passes of its sample."""
    asked = [_question(datamodel, test, index % len(test), fast) for index in range(count + 1)][1:]
    return Asked(*(statistics.median(seconds) for seconds in zip(*asked, strict=True)))


def _question(datamodel: DistilledDatamodel, test: Samples, index: int, fast: bool) -> Asked:
    own = timed(partial(_pass, datamodel.target, *test.batch([index])))[1]
    whole = timed(partial(datamodel.attribute, test[index], fast=fast))[1]
    return Asked(whole, whole - own)


def _pass(target: Target, x: Tensor, y: Tensor) -> None:
    """A sample forward and back."""
    theta = target.theta.detach().requires_grad_()
    torch.autograd.grad(target.loss(target.flat(theta, target.fixed, x), y), theta)
