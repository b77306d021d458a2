"""The processor's time, which other work on the machine hardly changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ddm.bench.problem import Problem
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Samples
from ddm.files import read_json, write_json
from ddm.recipe import Recipe
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


def question(datamodel: DistilledDatamodel, test: Samples, count: int, fast: bool = False) -> float:
    """Seconds of one more question, the median of ``count`` after the first."""
    datamodel.attribute(test[0], fast=fast)
    asked = [test[index % len(test)] for index in range(1, count + 1)]
    return statistics.median(timed(partial(datamodel.attribute, one, fast=fast))[1] for one in asked)
