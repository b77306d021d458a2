"""The paper's tables and figures, and ours: ``ddm bench NAME``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddm.bench import (
    ablation,
    classwise,
    comparison,
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
    unlearning,
    useless,
)
from ddm.bench.problem import Problem
from ddm.bench.report import Report
from ddm.bench.setup import Setup, preset
from ddm.engine import Engine
from ddm.errors import InputError
from ddm.files import working_in
from ddm.store import writable

__all__ = ["BENCHES", "Setup", "preset", "run"]

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
    "fidelity": fidelity.run,
    "scaling": scaling.run,
    "speed": speed.run,
    "privacy": privacy.run,
}
"""Each makes a report of a problem."""


def run(name: str, setup: Setup, out: Path, command: str = "", engine: Engine = None) -> dict[str, Any]:
    """Run a benchmark, write its files into ``out`` and return what its JSON holds; one that was killed goes on.

    engine: where retraining runs
    """
    if name not in BENCHES:
        raise InputError(f"there is no benchmark '{name}': use one of {', '.join(BENCHES)}.")
    writable(out)
    started = time.perf_counter()
    with working_in(out):
        report = BENCHES[name](Problem(setup, out / "work", engine))
        return report.write(out, setup, command, time.perf_counter() - started)
