"""Which of my training data made the model do this, and what would it be without them?

data = ddm.datasets.load("digits")
target = ddm.train(ddm.networks.ConvNet(), data.train, ddm.Recipe(epochs=30))
dm = ddm.DistilledDatamodel.fit(target, data.train)
dm.trace(data.test[12])

``import ddm`` is quick: names and submodules are imported when they are first used, and torch with them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddm import datasets, networks, objectives
    from ddm.attribution import Attribution
    from ddm.audit import Audit
    from ddm.datamodel import DistilledDatamodel
    from ddm.datasets.samples import Data, Samples
    from ddm.diagnosis import Diagnosis
    from ddm.errors import InputError
    from ddm.matching import Settings
    from ddm.objectives import Objective
    from ddm.partition import Partition
    from ddm.recipe import Recipe
    from ddm.store import load
    from ddm.synset import Synset
    from ddm.target import Recorder, Target
    from ddm.trace import Trace
    from ddm.training import train
    from ddm.trajectory import Trajectory

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
    "Trace",
    "Trajectory",
    "datasets",
    "load",
    "networks",
    "objectives",
    "train",
]

_HOMES = {
    "Attribution": "attribution",
    "Audit": "audit",
    "Data": "datasets.samples",
    "Diagnosis": "diagnosis",
    "DistilledDatamodel": "datamodel",
    "InputError": "errors",
    "Objective": "objectives",
    "Partition": "partition",
    "Recipe": "recipe",
    "Recorder": "target",
    "Samples": "datasets.samples",
    "Settings": "matching",
    "Synset": "synset",
    "Target": "target",
    "Trace": "trace",
    "Trajectory": "trajectory",
    "load": "store",
    "train": "training",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    """A public name or a submodule, imported at its first use."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddm.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"ddm.{name}") is not None:
        return importlib.import_module(f"ddm.{name}")
    raise AttributeError(f"module 'ddm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
