"""The config of a run: all options of ``ddm fit``, as an object and as ``config.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddm import networks
from ddm.compute.files import read_json
from ddm.compute.validation import check_fields
from ddm.data import is_table
from ddm.data.columns import Columns
from ddm.distil import Settings
from ddm.errors import InputError
from ddm.training.recipe import Recipe

PARTITIONS = ("kmeans", "class", "sequence")

_MAY_DIFFER = ("root", "device", "base")
"""Fields that do not change the result."""

_IF_SET = ("base", "columns")
"""Fields that files hold only where they are set."""


@dataclass(frozen=True)
class Config:
    """All options of ``ddm fit``.

    data, root:    the dataset, and the folder of its files
    columns:       what the columns of a table are for (``ddm.data.columns``)
    limit, size:   maximum samples of each split, and the pixels that images are resized to
    model:         name of the network
    options:       options of the network (depth, width, …, init, seed)
    recipe:        how the network is trained; without a learning rate it gets the network's default
    partition:     kmeans, class or sequence
    clusters:      clusters per class
    groups:        file with the user's own groups; replaces ``partition``
    groups_hash:   hash of that file, so that a changed file is noticed
    features:      pre-trained network whose features are clustered (hf:NAME)
    settings:      how synsets are distilled
    device:        where torch computes
    base:          absolute folder that relative paths start from; None is the current folder
    """

    data: str = "digits"
    root: str | None = None
    limit: int | None = None
    size: int | None = None
    model: str = "convnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    partition: str = "kmeans"
    clusters: int = 10
    groups: str | None = None
    groups_hash: str | None = None
    features: str | None = None
    settings: Settings = field(default_factory=Settings)
    device: str = "cpu"
    base: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.columns:
            object.__setattr__(self, "columns", Columns.parse(self.columns).to_dict())
        object.__setattr__(self, "recipe", self.recipe.with_lr(networks.learning_rate(self.model)))
        if self.clusters < 1:
            raise InputError(f"clusters must be at least 1, not {self.clusters}.")
        for name in ("name", "shape", "classes"):
            if name in self.options:
                raise InputError(f"{name} is not an option of a network: the data and --model decide it.")
        if self.partition not in PARTITIONS:
            raise InputError(f"there is no partition '{self.partition}': use one of {', '.join(PARTITIONS)}.")
        if self.features is not None and not self.features.startswith("hf:"):
            raise InputError(f"there are no features '{self.features}': give hf:NAME.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; ``base`` and ``columns`` only where they are set."""
        values = {name: value for name, value in asdict(self).items() if name not in _IF_SET or value}
        return values | {"recipe": self.recipe.to_dict(), "settings": self.settings.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build a config from the values that ``to_dict`` returned."""
        try:
            fields = dict(values)
            recipe, settings = Recipe(**fields.pop("recipe")), Settings(**fields.pop("settings"))
            return cls(**fields, recipe=recipe, settings=settings)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the config cannot be replayed ({error}): give one that ddm fit wrote.") from None


def usual_model(data: str, columns: Mapping[str, Any]) -> str:
    """The network for a dataset: one for texts, for tables, or for images."""
    if not is_table(data):
        return "convnet"
    return "mlp" if columns.get("text") is None else "text-transformer"


def usual_optimizer(model: str, columns: Mapping[str, Any]) -> str:
    """The optimizer with which a network usually learns: AdamW for texts and for regressions, else SGD."""
    return "adamw" if model == "text-transformer" or columns.get("task") == "regression" else "sgd"


def with_relative_base(config: dict[str, Any], run: Path) -> dict[str, Any]:
    """The values for ``config.json``: the base relative to the run, so that a run and its data can move together."""
    base = config.get("base")
    return config if base is None else config | {"base": os.path.relpath(os.path.realpath(base), os.path.realpath(run))}


def read_config(path: Path) -> Any:
    """The values in a ``config.json``, with the base as an absolute path."""
    config = read_json(path)
    if isinstance(config, dict) and isinstance(config.get("base"), str):
        config["base"] = os.path.normpath(os.path.join(os.path.realpath(path.parent), config["base"]))
    return config


def check_same_config(path: Path, config: Config) -> None:
    """Refuse to continue a run whose stored config would give another result."""
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise InputError(f"'{path}' is not a config: delete the folder or choose another --out.")
    for name, value in config.to_dict().items():
        if name not in _MAY_DIFFER and stored.get(name) != value:
            raise InputError(
                f"'{path.parent}' holds a run with another {name} ({_difference(stored.get(name), value)}): "
                f"choose another --out, or delete it."
            )


def _difference(stored: Any, wanted: Any) -> str:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        keys = [key for key in wanted if stored.get(key) != wanted[key]] or [key for key in stored if key not in wanted]
        return ", ".join(f"{key}: {stored.get(key)} there, {wanted.get(key)} now" for key in keys[:3])
    return f"{stored} there, {wanted} now"
