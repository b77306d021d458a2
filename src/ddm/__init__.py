"""Which of my training data made the model do this, and what would it be without them?

data = ddm.datasets.load("digits")
target = ddm.train(ddm.networks.ConvNet(), data.train, ddm.Recipe(epochs=30))
dm = ddm.DistilledDatamodel.fit(target, data.train)
dm.trace(data.test[12])
"""

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
