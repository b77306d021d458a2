"""The files that a config names: the dataset, and the user's own groups.

Relative paths start from the config's ``base``, so that a run opens from any folder.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddm import data as datasets
from ddm.compute import progress
from ddm.compute.files import hash_file
from ddm.data.offline import is_downloaded, offline
from ddm.data.samples import Data, Samples
from ddm.errors import InputError
from ddm.runs.config import Config, read_config
from ddm.runs.folder import CONFIG


def load_data(config: Config, root: str | None = None) -> Data:
    """The dataset of a config; ``root`` replaces the folder of its files."""
    name, default_root = _locate_data(config)
    columns = dict(config.columns)
    if isinstance(tokenizer := columns.get("tokenizer"), str):
        columns["tokenizer"] = _locate(tokenizer, config.base)
    data = datasets.load(name, root or default_root, limit=config.limit, size=config.size, **columns)
    return replace(data, name=config.data)


def load_data_of_run(run: Path, name: str | None = None, root: str | None = None) -> Data:
    """The dataset that a run names; ``name`` is needed for runs that were saved from Python.

    A run must not decide what is downloaded. A dataset of the hub is therefore read from this machine's cache, unless
    the user names it too. A local folder that the hub's libraries read must also be named by the user, because its
    card may point to files elsewhere.
    """
    config = _config_of_run(run, name)
    kind, _, path = _locate_data(config)[0].partition(":")
    if config.columns:
        with progress.silent(), offline() if name is None else contextlib.nullcontext():  # the fit said it all
            return load_data(config, root)
    if kind != "hf" or name is not None:
        return load_data(config, root)
    pass_data = f"pass --data {shlex.quote(config.data)}"
    if Path(path).is_dir():
        raise InputError(f"the run '{run}' reads the folder '{path}', which may name files elsewhere: {pass_data}.")
    if not is_downloaded(path):
        raise InputError(
            f"the data '{config.data}' of the run '{run}' are not on this machine: {pass_data} to get them."
        )
    with offline():
        return load_data(config, root)


def training_set(run: Path, name: str | None = None, root: str | None = None) -> Samples:
    """The training set that a run names, read from the current files."""
    return load_data_of_run(run, name, root).train


def _config_of_run(run: Path, name: str | None) -> Config:
    values = read_config(run / CONFIG)
    if isinstance(values, dict) and values.get("data") is None:
        if name is None:
            raise InputError(f"the run '{run}' was saved from Python and does not name its dataset: pass --data.")
        if datasets.is_table(name):
            raise InputError(
                f"the run '{run}' was saved from Python and does not name the columns of its table: open it there, "
                "with ddm.load."
            )
        return Config(data=name)
    config = Config.from_dict(values)
    if name not in (None, config.data):
        raise InputError(f"the run '{run}' was made with the data '{config.data}', not '{name}': leave out --data.")
    return config


def read_groups(config: Config, data: Data) -> np.ndarray | None:
    """The group of each training sample, from the config's file of groups or a column of a table; None without these.

    The file has one line per sample of the published training file, in its order.
    """
    if config.groups is None:
        return data.train.groups
    if data.train.groups is not None:
        raise InputError("give either --groups or --group-by.")
    path = Path(_locate(config.groups, config.base))
    if config.groups_hash not in (None, hash_file(path)):
        raise InputError(f"'{path}' has changed since the config was written: restore it.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not a text file: give one with one group per line.") from None
    if len(lines) != data.published or not all(line.strip() for line in lines):
        raise InputError(
            f"'{path}' has {sum(bool(line.strip()) for line in lines)} groups in {len(lines)} lines, but the training "
            f"file of {data.name} has {data.published} samples: give one line per sample, in their order, without a "
            "header."
        )
    groups: np.ndarray = np.array([line.strip() for line in lines])[data.train.origin.numpy()]
    return groups


def with_base(config: Config) -> Config:
    """The config with the current folder as its base, if it has relative paths that start there."""
    relative = [path for path in _paths(config) if not os.path.isabs(os.path.expanduser(path))]
    if any(_locate(path, config.base) != path for path in relative):
        return config
    return replace(config, base=os.getcwd() if relative else None)


def _paths(config: Config) -> list[str]:
    """The paths that a config names: data, root, groups and the folder of a tokenizer."""
    kind, colon, path = config.data.partition(":")
    root = datasets.default_root(config.data) if config.root is None else config.root
    is_path = colon and (kind != "hf" or os.path.isdir(path))  # otherwise it is a name on the hub
    tokenizer = config.columns.get("tokenizer")
    folder = tokenizer if isinstance(tokenizer, str) and os.path.isdir(tokenizer) else None
    return [each for each in (path if is_path else None, root, config.groups, folder) if each is not None]


def _locate_data(config: Config) -> tuple[str, str | None]:
    """The name and the root of a config's data, with paths that can be read from the current folder."""
    kind, colon, path = config.data.partition(":")
    name = f"{kind}:{_locate(path, config.base)}" if colon else config.data
    root = datasets.default_root(name) if config.root is None else config.root
    return name, None if root is None else _locate(root, config.base)


def _locate(path: str, base: str | None) -> str:
    """A relative path joined to ``base`` if that exists, else the path unchanged."""
    joined = None if base is None else os.path.join(base, os.path.expanduser(path))
    return path if joined is None or not os.path.exists(joined) else joined
