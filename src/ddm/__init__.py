"""Which of my training data made the model do this, and what would it be without them?

data = ddm.datasets.load("digits")
target = ddm.train("convnet", data.train, ddm.Recipe(epochs=30))
dm = ddm.DistilledDatamodel.fit(target, data.train)
dm.trace(data.test[12])

``import ddm`` is quick: names and submodules are imported when they are first used, and torch with them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddm import data as datasets
    from ddm import networks
    from ddm.answers import objectives
    from ddm.answers.attribution import Attribution
    from ddm.answers.diagnosis import Diagnosis
    from ddm.answers.objectives import Objective
    from ddm.answers.trace import Trace
    from ddm.data import tasks
    from ddm.data.samples import Data, Samples
    from ddm.data.tasks import Task
    from ddm.datamodel import DistilledDatamodel
    from ddm.distil.checks import check
    from ddm.distil.plan import plan
    from ddm.distil.settings import Settings
    from ddm.distil.synset import Synset
    from ddm.errors import InputError
    from ddm.groups.partition import Partition
    from ddm.runs.store import load
    from ddm.training.leave_out import leave_out
    from ddm.training.loop import train
    from ddm.training.recipe import Recipe
    from ddm.training.recorder import Recorder, record
    from ddm.training.target import Target
    from ddm.training.trajectory import Trajectory
    from ddm.truth.audit import Audit

__version__ = "0.1.0"

__all__ = [
    "Attribution",
    "Audit",
    "Data",
    "Diagnosis",
    "DistilledDatamodel",
    "InputError",
    "Objective",
    "Partition",
    "Recipe",
    "Recorder",
    "Samples",
    "Settings",
    "Synset",
    "Target",
    "Task",
    "Trace",
    "Trajectory",
    "check",
    "datasets",
    "leave_out",
    "load",
    "networks",
    "objectives",
    "plan",
    "record",
    "tasks",
    "train",
]

_HOMES = {
    "Attribution": "answers.attribution",
    "Audit": "truth.audit",
    "Data": "data.samples",
    "Diagnosis": "answers.diagnosis",
    "DistilledDatamodel": "datamodel",
    "InputError": "errors",
    "Objective": "answers.objectives",
    "Partition": "groups.partition",
    "Recipe": "training.recipe",
    "Recorder": "training.recorder",
    "record": "training.recorder",
    "Samples": "data.samples",
    "Settings": "distil.settings",
    "Synset": "distil.synset",
    "Target": "training.target",
    "Task": "data.tasks",
    "Trace": "answers.trace",
    "Trajectory": "training.trajectory",
    "leave_out": "training.leave_out",
    "check": "distil.checks",
    "load": "runs.store",
    "plan": "distil.plan",
    "train": "training.loop",
}
"""The module that defines each public name."""

_MODULES = {"datasets": "data", "objectives": "answers.objectives", "tasks": "data.tasks"}
"""Public modules that have another name inside the package."""


def __getattr__(name: str) -> Any:
    """A public name or a submodule, imported at its first use."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddm.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"ddm.{_MODULES[name]}")
    if not name.startswith("_") and importlib.util.find_spec(f"ddm.{name}") is not None:
        return importlib.import_module(f"ddm.{name}")
    raise AttributeError(f"module 'ddm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
