"""CPU time of trainings and questions. Unlike wall-clock time it hardly depends on other load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ddm.bench.problem import Problem
from ddm.compute.files import read_json, write_json
from ddm.data.samples import Samples
from ddm.datamodel import DistilledDatamodel
from ddm.training.loop import train
from ddm.training.recipe import Recipe
from ddm.training.target import Target

Result = TypeVar("Result")


def with_cpu_seconds(work: Callable[[], Result]) -> tuple[Result, float]:
    """Call ``work`` and return its result with the CPU seconds that it took in this process."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def training_seconds(problem: Problem) -> float:
    """CPU seconds of the target's training, cached. A target that already exists is trained once more to time it."""
    path = problem.target_folder / "processor.json"
    train(problem.network, problem.train[:2], Recipe(epochs=1))  # warm up: the imports of an optimizer take seconds
    if not path.exists():
        write_json(path, {"seconds": with_cpu_seconds(_training_to_time(problem))[1]})
    return float(read_json(path)["seconds"])


def _training_to_time(problem: Problem) -> Callable[[], object]:
    """The training of the target itself; or, if some of it is already stored, a training from the start."""
    if not problem.target_folder.exists():
        return lambda: problem.target
    return lambda: train(problem.network, problem.train, problem.setup.recipe, loss=problem.loss)


class QuestionSeconds(NamedTuple):
    """CPU seconds of a question, and the part beyond one forward and backward pass of its sample."""

    whole: float
    beyond: float


def question_seconds(datamodel: DistilledDatamodel, test: Samples, count: int, fast: bool = False) -> QuestionSeconds:
    """Medians over ``count`` questions after a first one to warm up; passes are timed in turn with questions."""
    times = [_one_question(datamodel, test, index % len(test), fast) for index in range(count + 1)][1:]
    return QuestionSeconds(*(statistics.median(seconds) for seconds in zip(*times, strict=True)))


def _one_question(datamodel: DistilledDatamodel, test: Samples, index: int, fast: bool) -> QuestionSeconds:
    own = with_cpu_seconds(partial(_forward_backward, datamodel.target, *test.tensors([index])))[1]
    whole = with_cpu_seconds(partial(datamodel.attribute, test[index], fast=fast))[1]
    return QuestionSeconds(whole, whole - own)


def _forward_backward(target: Target, x: Tensor, y: Tensor) -> None:
    """One forward and backward pass of a sample."""
    theta = target.theta.detach().requires_grad_()
    torch.autograd.grad(target.loss(target.flat(theta, target.fixed, x), y), theta)
