"""``scaling``: how the time and memory of a fit grow with each dimension of a problem.

One dimension changes at a time, and each fit runs in its own process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddm.bench import timing
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.setup import Setup
from ddm.bench.timing import with_cpu_seconds
from ddm.compute.files import read_json, write_json
from ddm.compute.memory import peak_bytes
from ddm.compute.one_thread import one_thread
from ddm.compute.progress import bar
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.groups.partition import make_partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALVINGS = 4
"""Number of times that the sweep of n halves the training set. All other sweeps use a quarter of the set."""

_QUESTIONS = 20
"""Number of questions to time."""

AXES = {
    "n": "training samples",
    "K": "groups",
    "P": "parameters",
    "L": "classes",
    "T": "checkpoints",
    "B": "images shared by all groups",
}


class DividedClasses(Problem):
    """A problem whose classes are each divided into ``parts`` classes, by dealing out samples in turn."""

    def __init__(self, setup: Setup, work: Path, parts: int) -> None:
        super().__init__(setup, work)
        self.division = parts

    @cached_property
    def data(self) -> Data:
        """The dataset, with its classes divided."""
        data = super().data
        train, validation, test = map(self._divide_classes, (data.train, data.validation, data.test))
        return replace(data, train=train, validation=validation, test=test)

    def _divide_classes(self, samples: Samples) -> Samples:
        labels = samples.labels * self.division + torch.arange(len(samples)) % self.division
        names = tuple(f"{name}.{part}" for name in samples.classes for part in range(self.division))
        return replace(samples, labels=labels, classes=names)

    @property
    def target_folder(self) -> Path:
        """The folder of the trajectory."""
        return self.work / f"target-{self.setup.training_key()}-{self.division}"


def run(problem: Problem) -> Report:
    """Fit with more samples, groups, parameters, classes, checkpoints and images."""
    points = list(_sweeps(problem.setup, len(problem.train)))
    rows: list[Row] = []
    with bar("fits", len(points)) as advance:
        for number, (axis, setup, parts) in enumerate(points):
            name = {"method": f"{axis}, fit {number}", "title": AXES[axis], "symbol": axis}
            rows.append(name | _cached_fit(setup, problem.work, parts))
            advance(1)
    exponents = {f"exponent of {axis}": _exponent(rows, axis, "fit") for axis in AXES}
    groups = [row for row in rows if row["symbol"] == "K"]
    return Report(
        "scaling",
        f"How the cost of a fit grows: {problem.setup.data}, {problem.setup.model}",
        rows,
        {
            "title": "what grows",
            **{axis: axis for axis in AXES},
            "training": "training, s",
            "partition": "clustering, s",
            "matching": "matching, s",
            "in trainings": "cost in trainings",
            "question": "ms per question",
            "MiB": "peak MiB",
        },
        notes=[
            "CPU seconds on one core; the cost of a fit beyond training is clustering plus matching. A question scores "
            f"all K groups for one more test sample; the median of {_QUESTIONS} is shown. Peak MiB is the largest "
            "memory of the process, including the data.",
            "An exponent is the slope of log(seconds of clustering and matching) over log(what grows): 1 is linear, 0 "
            "is constant.",
        ],
        reference=exponents
        | {
            "peak memory with most groups over that with fewest": groups[-1]["MiB"] / groups[0]["MiB"],
        },
        figure=_figure(rows),
    )


def _sweeps(setup: Setup, count: int) -> list[tuple[str, Setup, int]]:
    """For each fit: the dimension that grows, the setup, and the number of parts of each class."""
    quarter = max(1, count // 4)
    base = replace(setup, limit=quarter)

    def options(**changes: Any) -> Setup:
        return replace(base, options={**setup.options, **changes})

    def settings(**changes: Any) -> Setup:
        return replace(base, settings=replace(setup.settings, **changes))

    width = int(setup.options.get("width", 16))
    n = [("n", replace(setup, limit=count >> halving), 1) for halving in reversed(range(_HALVINGS + 1))]
    K = [("K", replace(base, clusters=factor * setup.clusters), 1) for factor in (1, 2, 5, 10)]
    P = [("P", options(width=factor * width), 1) for factor in (1, 2, 4)]
    L = [("L", replace(base, clusters=max(1, setup.clusters // parts)), parts) for parts in (1, 2, 5, 10)]
    T = [("T", settings(checkpoints=checkpoints), 1) for checkpoints in (2, 4, 8, 16)]
    B = [("B", settings(bank=images), 1) for images in (50, 100, 200, 400)]
    return n + K + P + L + T + B


def _cached_fit(setup: Setup, work: Path, parts: int) -> Row:
    """The measurements of a fit, from the cache or from a new process."""
    path = work / f"scaling-{setup.key()}-{parts}.json"
    if not path.exists():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "sklearn.cluster"])  # their imports take seconds
        with ProcessPoolExecutor(1, context) as process:
            write_json(path, process.submit(measure_fit, setup, work, parts).result())
    row: Row = read_json(path)
    return row


def measure_fit(setup: Setup, work: Path, parts: int) -> Row:
    """Measure a fit in this process, which must do nothing else."""
    problem = DividedClasses(setup, work, parts)
    with one_thread():
        training = timing.training_seconds(problem)
        target, samples, settings = problem.target, problem.train, setup.settings
        partition, clustering = with_cpu_seconds(
            lambda: make_partition(target, samples, setup.partition, setup.clusters, seed=setup.seed)
        )
        datamodel, matching = with_cpu_seconds(
            lambda: DistilledDatamodel.fit(target, samples, partition=partition, settings=settings, engine="serial")
        )
        question = timing.question_seconds(datamodel, problem.data.test, _QUESTIONS).whole
    return {
        "n": len(samples),
        "K": len(partition),
        "P": target.flat.size,
        "L": len(problem.data.classes),
        "T": min(settings.checkpoints, len(target.trajectory)),
        "B": datamodel.synset.count,
        "training": training,
        "partition": clustering,
        "matching": matching,
        "fit": clustering + matching,
        "in trainings": (clustering + matching) / training,
        "question": 1000 * question,
        "MiB": peak_bytes() / 2**20,
    }


def _exponent(rows: Sequence[Mapping[str, Any]], axis: str, key: str) -> float:
    """The slope of log(row[key]) over log(row[axis])."""
    chosen = [row for row in rows if row["symbol"] == axis]
    x, y = (np.log([float(row[name]) for row in chosen]) for name in (axis, key))
    return float(np.polyfit(x, y, 1)[0])


def _figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds over each dimension that grows, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    for axis, panel in zip(AXES, figure.subplots(2, 3, sharey=True).flat, strict=True):
        _draw(panel, axis, [row for row in rows if row["symbol"] == axis])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw(panel: Axes, axis: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator

    x = [row[axis] for row in rows]
    for key, label, colour in (("training", "training", "#999999"), ("fit", "fit", "#0072b2")):
        panel.loglog(x, [row[key] for row in rows], "o-", label=f"{label}, seconds", color=colour, markersize=4)
    panel.loglog(x, [row["question"] for row in rows], "s-", label="a question, ms", color="#d55e00", markersize=4)
    panel.set_xlabel(f"{AXES[axis]} {axis}")
    panel.set_xticks(x, [f"{value:,}" for value in x], fontsize=7)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.set_title(f"fit grows with {axis} to the power {_exponent(rows, axis, 'fit'):.2f}", fontsize=9)
