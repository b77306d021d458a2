"""Benchmarks: the paper's tables and figures, and our own. The command is ``ddm bench NAME``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddm.bench import (
    ablation,
    classwise,
    comparison,
    damping,
    evidence,
    evidence_files,
    fidelity,
    hierarchy,
    ladder,
    matching,
    noise,
    privacy,
    recipes,
    scaling,
    speed,
    transfer,
    truth_files,
    unlearning,
    useless,
)
from ddm.bench.output import Report
from ddm.bench.problem import Problem
from ddm.bench.problems import PROBLEMS, stored_setup
from ddm.bench.setup import Setup, preset
from ddm.bench.truth_files import truth_file
from ddm.compute.engine import Engine
from ddm.compute.files import read_json_object
from ddm.compute.folders import check_empty, lock_folder
from ddm.errors import InputError
from ddm.runs.folder import make_writable

__all__ = ["BENCHES", "STORED", "Folders", "Setup", "make_evidence", "make_truths", "preset", "run", "run_stored"]

BENCHES: dict[str, Callable[[Problem], Report]] = {
    "ablation": ablation.run,
    "comparison": comparison.run,
    "useless": useless.run,
    "matching": matching.run,
    "noise": noise.run,
    "transfer": transfer.run,
    "architectures": classwise.architectures,
    "initialisations": classwise.initialisations,
    "hierarchy": hierarchy.run,
    "unlearning": unlearning.run,
    "ladder": ladder.run,
    "recipes": recipes.run,
    "damping": damping.run,
    "fidelity": fidelity.run,
    "scaling": scaling.run,
    "speed": speed.run,
    "privacy": privacy.run,
}
"""Benchmarks by name: each takes a problem and returns a report."""

STORED = (*recipes.STORED, "evidence")
"""Benchmarks on stored problems; recipes also runs on other data."""

WORK = "work"
"""The folder beside the results that caches trained models."""


def run(name: str, setup: Setup, out: Path, command: str = "", engine: Engine = None) -> dict[str, Any]:
    """Run a benchmark, write its files into ``out`` and return the content of its JSON file.

    A benchmark that was killed resumes from the work it has stored in ``out``.

    engine: where retraining runs
    """
    if name not in BENCHES:
        raise InputError(
            f"there is no benchmark '{name}': use truths, evidence, tables-and-texts, {', '.join(BENCHES)}."
        )
    return _run(lambda: BENCHES[name](Problem(setup, out / WORK, engine)), setup, out, command)


@dataclass(frozen=True)
class Folders:
    """The folders of a benchmark on stored problems.

    truths, evidence: the stored retrainings
    root:             the datasets
    out:              the results
    """

    truths: Path
    evidence: Path
    root: str | None
    out: Path


def run_stored(
    name: str, problems: Sequence[str], folders: Folders, command: str = "", engine: Engine = None
) -> dict[str, Any]:
    """Run a benchmark on stored problems, as ``run`` does; without problems, on all of its problems that have files.

    name: one of ``STORED``
    """
    truths, stored, root, work = folders.truths, folders.evidence, folders.root, folders.out / WORK
    scores = name in recipes.STORED
    problems = problems or (recipes.stored_names(name, truths) if scores else evidence.stored_names(stored))
    for problem in problems:
        stored_setup(problem, root)  # refuses unknown names before a folder is made

    def make_report() -> Report:
        if scores:
            return recipes.run_stored(name, problems, truths, root, work, engine)
        return evidence.run_stored(problems, truths, stored, root, work, engine)

    return _run(make_report, None, folders.out, command)


def make_truths(names: Sequence[str], root: str | None, out: Path, engine: Engine = None) -> list[Path]:
    """Write the truth of each named problem into ``out`` unless it is there; without names, of every problem."""
    names = names or list(PROBLEMS)
    with _stored_folder(names, root, out, "a folder of stored truths"):
        return truth_files.make_truths(names, root, out, out / WORK, engine)


def make_evidence(names: Sequence[str], root: str | None, truths: Path, out: Path, engine: Engine = None) -> list[Path]:
    """Write the evidence of each named problem into ``out`` unless it is there; without names, of six problems.

    truths: the folder of the stored truths, which give the groups
    """
    names = names or evidence_files.EVIDENCE_PROBLEMS
    with _stored_folder(names, root, out, "a folder of stored evidence"):
        return evidence_files.make_evidence(names, root, truths, out, out / WORK, engine)


@contextmanager
def _stored_folder(names: Sequence[str], root: str | None, out: Path, what: str) -> Iterator[None]:
    """Refuse unknown problems and folders with other files, then lock the folder of stored files."""
    for name in names:
        stored_setup(name, root)
    check_empty(out, what, (WORK, "README.md", *(truth_file(out, name).name for name in PROBLEMS)))
    make_writable(out)
    with lock_folder(out):
        yield


def _run(make_report: Callable[[], Report], setup: Setup | None, out: Path, command: str) -> dict[str, Any]:
    """Make a report and write its files into ``out``."""
    _check_free(out)
    make_writable(out)
    started = time.perf_counter()
    with lock_folder(out):
        return make_report().write(out, setup, command, time.perf_counter() - started)


def _check_free(out: Path) -> None:
    """Refuse a folder that holds no results of benchmarks but other files: some could be overwritten."""
    names = (*BENCHES, *STORED)
    if any(_is_result(out / f"{name}.json", name) for name in names):
        return
    killed = (WORK, *(f"{name}.{kind}" for name in names for kind in ("md", "png")))  # the JSON is written last
    check_empty(out, "a folder of benchmarks", killed if (out / WORK).is_dir() else ())


def _is_result(path: Path, name: str) -> bool:
    return path.is_file() and read_json_object(path).get("bench") == name
