"""A run: from a config to a datamodel on disk, and back. What ``ddm fit`` does and what the other commands open.

The config replays the run. A run that was killed goes on where it stopped: training from its last whole epoch, matching
from its last finished block, to the same result.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ddm import data as datasets
from ddm import networks
from ddm.compute.backends import Place
from ddm.compute.engine import Engine
from ddm.compute.files import hash_of, read_json, read_table, working_in, write_json
from ddm.compute.precision import check_bfloat16
from ddm.compute.validation import check_types
from ddm.data.offline import is_at_hand, offline
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings, distil
from ddm.errors import InputError
from ddm.groups.partition import make_partition
from ddm.runs import store
from ddm.training.loop import train
from ddm.training.recipe import Recipe
from ddm.training.target import device_of
from ddm.truth.audit import Audit

PARTITIONS = ("kmeans", "class", "sequence")

_MAY_DIFFER = ("root", "device", "base")
"""Parts of a config that do not change the result."""


@dataclass(frozen=True)
class Config:
    """Everything ``ddm fit`` is told.

    data, root, limit, size: the dataset, where its files are, at most how many samples, pixels to resize to
    model, options:          the network and what it is built with (depth, width, …, init, seed)
    recipe:                  how it is trained; a learning rate that it lacks is the network's default
    partition, clusters, groups, features: how the training set is split; ``groups`` is a file of the user's own, and
                             ``groups_hash`` tells whether it has changed
    settings:                how synsets are distilled
    device:                  where
    base:                    the folder that relative paths start from, absolute; None is the current one
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

    def __post_init__(self) -> None:
        check_types(self)
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
        """As JSON values, without a base where there is none."""
        values = {name: value for name, value in asdict(self).items() if name != "base" or value is not None}
        return values | {"recipe": self.recipe.to_dict(), "settings": self.settings.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """From what ``to_dict`` gave."""
        try:
            parts = dict(values)
            recipe, settings = Recipe(**parts.pop("recipe")), Settings(**parts.pop("settings"))
            return cls(**parts, recipe=recipe, settings=settings)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the config cannot be replayed ({error}): give one that ddm fit wrote.") from None


def fit(config: Config, out: Path, engine: Engine = None) -> tuple[DistilledDatamodel, Data, dict[str, Any]]:
    """Make the run that ``config`` describes in ``out``, or go on with it; returns its summary too.

    engine: where independent pieces of it run; the result is the same
    """
    device = device_of(config.device)
    if config.recipe.amp:
        check_bfloat16(device)
    Place.of(engine).check()
    config = _based(config)
    data = load_data(config)
    network = networks.build(config.model, data.train.shape, len(data.classes), **config.options)
    own = read_groups(config, data)
    store.check_free(out)
    if not out.is_dir():
        store.writable(out)
    with working_in(out):
        if not _complete(out, config):
            return _make(config, out, data, network, own, engine)
        shutil.rmtree(out / store.PARTS, ignore_errors=True)  # of a run that was killed at its very end
        datamodel, data = open_run(out, data=data)
        return datamodel, data, read_table(out / store.SUMMARY)


def _make(
    config: Config, out: Path, data: Data, network: nn.Module, own: np.ndarray | None, engine: Engine
) -> tuple[DistilledDatamodel, Data, dict[str, Any]]:
    """Make a run, or the rest of it."""
    store.begin(out, config.to_dict())
    clock = _Clock()
    target = train(network, data.train, config.recipe, directory=out / store.TRAJECTORY, device=config.device)
    clock.lap("training")
    kind = config.partition if own is None else own
    partition = make_partition(target, data.train, kind, config.clusters, config.features, config.settings.seed)
    clock.lap("partition")
    synset, upper = distil(target, data.train, partition, config.settings, out / store.PARTS, engine)
    clock.lap("matching")
    datamodel = DistilledDatamodel(
        target, partition, synset, upper, config.settings, data.train.fingerprint(), config.to_dict(), data.train
    )
    facts = summary(datamodel, data) | {"seconds": clock.laps}
    write_json(out / store.SUMMARY, facts)
    store.save(datamodel, out)
    return datamodel, data, facts


def open_run(
    run: Path,
    *,
    data: Data | None = None,
    name: str | None = None,
    root: str | None = None,
    device: str = "cpu",
) -> tuple[DistilledDatamodel, Data]:
    """The datamodel of a run and its dataset, checked to be the one it was made with."""
    device_of(device)
    datamodel = store.load(run, device=device)
    if data is None:
        data = _data_of(run, name, root)
    if data.train.fingerprint() != datamodel.data:
        raise InputError(
            f"the run '{run}' was made with other training data than '{data.name}' holds now "
            f"({data.train.unlike(datamodel.described)}): restore them."
        )
    datamodel.samples = data.train
    return datamodel, data


def training_set(run: Path, name: str | None = None, root: str | None = None) -> Samples:
    """The training set that a run names, as it is now."""
    return _data_of(run, name, root).train


def _data_of(run: Path, name: str | None, root: str | None) -> Data:
    """The dataset that a run names.

    A run does not decide what is downloaded: one of the hub is read from this machine unless the user names it too, and
    so must be named a folder that the hub's libraries read, whose card may name files elsewhere.
    """
    config = _config_of(run, name)
    kind, _, path = _places(config)[0].partition(":")
    if kind != "hf" or name is not None:
        return load_data(config, root)
    again = f"pass --data {shlex.quote(config.data)}"
    if Path(path).is_dir():
        raise InputError(f"the run '{run}' is of the folder '{path}', which may name files elsewhere: {again}.")
    if not is_at_hand(path):
        raise InputError(f"the data '{config.data}' of the run '{run}' are not on this machine: {again} for them.")
    with offline():
        return load_data(config, root)


def audit(
    run: Path,
    datamodel: DistilledDatamodel,
    data: Data,
    *,
    retrain: int,
    unions: int | None,
    seeds: int,
    seed: int,
    engine: Engine = None,
) -> Audit:
    """Audit a run and keep what was found in it; one that was killed goes on."""
    with working_in(run):
        found = datamodel.audit(
            data.test,
            validation=data.validation,
            retrain=retrain,
            unions=unions,
            seeds=seeds,
            directory=run / store.EXACT,
            seed=seed,
            engine=engine,
        )
        store.save_audit(found, run)
    return found


def load_data(config: Config, root: str | None = None) -> Data:
    """The dataset of a config, its files looked for in ``root`` if given."""
    name, home = _places(config)
    data = datasets.load(name, root or home, limit=config.limit, size=config.size)
    return replace(data, name=config.data)


def _places(config: Config) -> tuple[str, str | None]:
    """The name and the root of a config's data, with paths that can be read from the current folder."""
    kind, colon, path = config.data.partition(":")
    name = f"{kind}:{_found(path, config.base)}" if colon else config.data
    root = datasets.usual_root(name) if config.root is None else config.root
    return name, None if root is None else _found(root, config.base)


def _found(path: str, base: str | None) -> str:
    """A relative path from ``base``, where something is there; else as it is, from the current folder."""
    started = None if base is None else os.path.join(base, os.path.expanduser(path))
    return path if started is None or not os.path.exists(started) else started


def _based(config: Config) -> Config:
    """The config with the folder that its relative paths start from, so that the run opens from any other too."""
    kind, colon, path = config.data.partition(":")
    root = datasets.usual_root(config.data) if config.root is None else config.root
    of_files = colon and (kind != "hf" or os.path.isdir(path))  # else it is a name on the hub
    paths = [each for each in (path if of_files else None, root, config.groups) if each is not None]
    relative = [each for each in paths if not os.path.isabs(os.path.expanduser(each))]
    if any(_found(each, config.base) != each for each in relative):
        return config
    return replace(config, base=os.getcwd() if relative else None)


def summary(datamodel: DistilledDatamodel, data: Data) -> dict[str, Any]:
    """What a run holds, in numbers."""
    target, partition = datamodel.target, datamodel.partition
    return {
        "data": data.name,
        "network": type(target.network).__name__,
        "parameters": target.flat.size,
        "samples": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        "accuracy": {split: target.accuracy(data.split(split)) for split in ("train", "validation", "test")},
        "checkpoints": len(target.trajectory),
        "groups": len(partition),
        "group_sizes": {"smallest": int(partition.sizes.min()), "largest": int(partition.sizes.max())},
        "matching": datamodel.settings.matching,
        "alignment": float(datamodel.synset.alignment.mean()),
        "stopped": datamodel.synset.stopped,
        "synset_bytes": datamodel.synset.nbytes,
    }


def _complete(out: Path, config: Config) -> bool:
    """Whether ``out`` already holds this run; another run there is refused."""
    if not (out / store.CONFIG).exists():
        return False
    kept = read_json(out / store.CONFIG)
    if not isinstance(kept, dict):
        raise InputError(f"'{out / store.CONFIG}' is not a config: delete the folder or choose another --out.")
    wanted = config.to_dict()
    for what, value in wanted.items():
        if what not in _MAY_DIFFER and kept.get(what) != value:
            raise InputError(
                f"'{out}' holds a run with another {what} ({_difference(kept.get(what), value)}): "
                f"choose another --out, or delete it."
            )
    return (out / store.MANIFEST).exists() and bool(store.read_manifest(out).get("complete"))


def _difference(kept: Any, wanted: Any) -> str:
    """What differs, in a few words."""
    if isinstance(kept, dict) and isinstance(wanted, dict):
        keys = [key for key in wanted if kept.get(key) != wanted[key]] or [key for key in kept if key not in wanted]
        return ", ".join(f"{key}: {kept.get(key)} there, {wanted.get(key)} now" for key in keys[:3])
    return f"{kept} there, {wanted} now"


def _config_of(run: Path, name: str | None) -> Config:
    values = store.read_config(run / store.CONFIG)
    if isinstance(values, dict) and values.get("data") is None:
        if name is None:
            raise InputError(f"the run '{run}' was saved from Python and does not name its dataset: pass --data.")
        return Config(data=name)
    config = Config.from_dict(values)
    if name not in (None, config.data):
        raise InputError(f"the run '{run}' is of the data '{config.data}', not '{name}': leave out --data.")
    return config


def read_groups(config: Config, data: Data) -> np.ndarray | None:
    """The group of each training sample from the file a config names: a line for each sample of the training file."""
    if config.groups is None:
        return None
    path = Path(_found(config.groups, config.base))
    if config.groups_hash not in (None, hash_of(path)):
        raise InputError(f"'{path}' has changed since the config was written: restore it.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not a text file: give one with a group a line.") from None
    if len(lines) != data.published or not all(line.strip() for line in lines):
        raise InputError(
            f"'{path}' has {sum(bool(line.strip()) for line in lines)} groups in {len(lines)} lines, but the training "
            f"file of {data.name} has {data.published} samples: give a line for each, in their order, without a header."
        )
    groups: np.ndarray = np.array([line.strip() for line in lines])[data.train.origin.numpy()]
    return groups


class _Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = round(now - self._last, 3)
        self._last = now
