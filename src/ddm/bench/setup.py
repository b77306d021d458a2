"""The setup of a benchmark, and presets: quick ones that finish within half an hour, and the paper's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ddm.compute.validation import check_upper_bounds
from ddm.distil import Settings, paper
from ddm.errors import InputError
from ddm.networks import learning_rate
from ddm.training.recipe import Recipe

SCALES = ("quick", "paper", "tiny")

_IRRELEVANT = ("root",)
"""Fields of a setup that do not change results."""


@dataclass(frozen=True)
class Setup:
    """The data, target, groups and settings that a benchmark uses.

    data, root, limit, size: dataset, folder of its files, maximum samples per split, image size in pixels
    model, options, recipe:  the target's network and how it is trained
    partition, clusters:     how the training set is split into groups; clusters per class
    tests, validation:       number of test samples to explain, and of validation samples
    unions:                  number of random unions of half of the groups, for lds
    orders:                  number of batch orders per retraining, the target's own first
    settings:                how DDM distils
    noise:                   root mean square per pixel of the noise on a fifth of the groups
    smoothing:               label smoothing of the training loss
    seed:                    random seed
    """

    data: str = "digits"
    root: str | None = None
    limit: int | None = None
    size: int | None = None
    model: str = "convnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    partition: str = "kmeans"
    clusters: int = 5
    tests: int = 100
    validation: int = 300
    unions: int = 16
    orders: int = 2
    settings: Settings = field(default_factory=Settings)
    noise: float = 0.0
    seed: int = 0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", self.recipe.with_lr(learning_rate(self.model)))
        check_upper_bounds(clusters=self.clusters, tests=self.tests, validation=self.validation, unions=self.unions)
        check_upper_bounds(orders=self.orders)
        if self.orders < 2:
            raise InputError(f"a benchmark needs at least 2 batch orders (--seeds), not {self.orders}.")
        if min(self.clusters, self.tests, self.validation, self.unions) < 1:
            raise InputError("clusters, test samples, validation samples and unions must each be at least 1.")
        if not 0 <= self.smoothing <= 1:
            raise InputError(f"label smoothing must lie in 0 to 1, not {self.smoothing}.")

    def to_dict(self) -> dict[str, Any]:
        """The setup as JSON values, without smoothing if there is none: files of older benchmarks lack it."""
        values = asdict(self) | {"recipe": self.recipe.to_dict(), "settings": self.settings.to_dict()}
        return {name: value for name, value in values.items() if name != "smoothing" or value}

    def key(self) -> str:
        """A hash of the setup without the location of its files."""
        return self._hash_without(*_IRRELEVANT)

    def question_key(self) -> str:
        """A hash of all that determines a baseline's scores: everything but DDM's settings."""
        return self._hash_without(*_IRRELEVANT, "settings")

    def training_key(self) -> str:
        """A hash of all that determines the trained target."""
        parts = ["data", "limit", "size", "model", "options", "recipe", "seed", "smoothing"]
        if self.noise:
            parts += ["noise", "partition", "clusters"]
        return short_hash({name: value for name, value in self.to_dict().items() if name in parts})

    def _hash_without(self, *names: str) -> str:
        return short_hash({name: value for name, value in self.to_dict().items() if name not in names})


_COLOUR: dict[str, Any] = {"size": 16, "options": {"width": 16, "depth": 3}}

_MANY_CLASSES: dict[str, Any] = {
    "limit": 2000,
    "recipe": Recipe(epochs=12, lr=0.1, batch_size=64),
    "clusters": 1,
    "unions": 8,
}

_QUICK: dict[str, dict[str, Any]] = {
    "digits": {
        "options": {"width": 16, "depth": 2},
        "recipe": Recipe(epochs=20, lr=0.1, batch_size=64),
        "clusters": 3,
    },
    "mnist": {
        "limit": 3000,
        "size": 14,
        "options": {"width": 16, "depth": 2},
        "recipe": Recipe(epochs=15, lr=0.1, batch_size=128),
        "orders": 3,
        "unions": 20,
    },
    "cifar10": _COLOUR | {"limit": 3000, "recipe": Recipe(epochs=12, lr=0.05, batch_size=64)},
    "cifar100": _COLOUR | _MANY_CLASSES,
    "tiny-imagenet": _COLOUR | _MANY_CLASSES,
}

_TINY: dict[str, Any] = {
    "limit": 120,
    "options": {"width": 4, "depth": 1},
    "recipe": Recipe(epochs=2, lr=0.1, batch_size=32),
    "clusters": 1,
    "tests": 6,
    "validation": 12,
    "unions": 3,
    "settings": Settings(steps=2, checkpoints=2, offset=1, curvature=64, bank=8),
}

_SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"width": 16},
    "resnet18ap": {"width": 8},
    "simplevit": {"dim": 32, "depth": 2},
}
"""Options of networks other than the ConvNet in quick and tiny presets."""


def preset(data: str, model: str = "convnet", scale: str = "quick") -> Setup:
    """The setup of a dataset and a network at one of the scales."""
    if scale == "paper":
        recipe, settings = paper(data, model)
        return Setup(
            data=data, model=model, recipe=recipe, clusters=10, tests=20, validation=1000, unions=100, settings=settings
        )
    if scale not in SCALES:
        raise InputError(f"there is no scale '{scale}': use one of {', '.join(SCALES)}.")
    chosen = _TINY if scale == "tiny" else _QUICK.get(data, {"limit": 2000})
    setup = replace(Setup(data=data, model=model), **chosen)
    if model != "convnet":
        setup = replace(setup, options=_SMALL.get(model, {}))
    return setup


def short_hash(values: Any, digits: int = 12) -> str:
    """The first digits of a hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:digits]
