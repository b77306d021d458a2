"""The run directory: everything a datamodel is, in files that are whole or absent, none of them pickled.

    manifest.json                  format version, fingerprints, versions of libraries, checksums of the files, and
                                   whether the run is complete
    config.json                    what replays the run
    trajectory/00000.safetensors…  θ_0 … θ_τ
    partition.safetensors          the group of each training sample
    synset.safetensors             the synset of every group
    synset-class.safetensors       that of every class
    audit.json                     how far it can be trusted, once ddm audit has measured it
    exact/                         models retrained without groups
    parts/                         finished parts of a run that is not complete

It holds no file of training images, but a synset that started from some (reverse and forward matching) can show them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ddm import networks
from ddm.compute.files import (
    check_empty,
    check_hash,
    hash_of,
    is_sealed,
    leads_out,
    make_folder,
    read_json,
    read_metadata,
    read_table,
    read_tensors,
    sealed,
    write_json,
    write_tensors,
)
from ddm.compute.validation import is_names
from ddm.data.samples import Samples
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.networks.flat import State, check_state, shapes_of
from ddm.training.recipe import Recipe
from ddm.training.target import Loss, Target, architecture, fingerprint_of, loss_name
from ddm.training.trajectory import PARAMETER_RATES, Trajectory
from ddm.truth.audit import Audit

FORMAT = 1

MANIFEST, CONFIG = "manifest.json", "config.json"
TRAJECTORY, PARTS, EXACT, AUDIT, SUMMARY = "trajectory", "parts", "exact", "audit.json", "summary.json"
PARTITION, SYNSET, CLASS_SYNSET = "partition.safetensors", "synset.safetensors", "synset-class.safetensors"

FILES = (CONFIG, SUMMARY, PARTITION, SYNSET, CLASS_SYNSET)
"""Beside the manifest and the trajectory, what a complete run may have."""


_KINDS = dict.fromkeys(("data", "network", "target"), (str,)) | {
    "files": (dict,),
    "described": (dict, type(None)),
}
"""What some facts of a complete run must be; the rest is checked where it is used."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def save(datamodel: DistilledDatamodel, run: Path) -> None:
    """Write a complete run."""
    target = datamodel.target
    check_links(run)
    kept = target.trajectory.directory
    in_place = kept is not None and kept.resolve() == (run / TRAJECTORY).resolve()
    check_free(run, (TRAJECTORY, PARTS) if in_place else ())
    if (run / MANIFEST).exists():
        check_same(run, datamodel)
    begin(run, datamodel.config or _config(datamodel))
    if not in_place:
        shutil.rmtree(run / TRAJECTORY, ignore_errors=True)
        target.trajectory.save(run / TRAJECTORY)
    save_partition(datamodel.partition, run / PARTITION, datamodel.data)
    datamodel.synset.save(run / SYNSET)
    (run / CLASS_SYNSET).unlink(missing_ok=True)
    if datamodel.class_synset is not None:
        datamodel.class_synset.save(run / CLASS_SYNSET)
    files = {name: hash_of(run / name) for name in _files(run)}
    write_json(run / MANIFEST, sealed(manifest(datamodel) | {"files": files}))
    if datamodel.audited is not None:
        save_audit(datamodel.audited, run)
    shutil.rmtree(run / PARTS, ignore_errors=True)


def check_free(run: Path, allowed: Collection[str] = ()) -> None:
    """Refuse a folder that holds anything but a run: saving there would delete or overwrite some of it.

    ``begin`` writes the manifest first, so that the folder of a killed fit counts as a run.
    """
    if (run / MANIFEST).is_file():
        read_facts(run)
    else:
        check_empty(run, "a run", allowed)


def begin(run: Path, config: dict[str, Any]) -> None:
    """Say what a run is going to hold; until its manifest is written again it is not complete.

    The manifest comes first: ``check_free`` knows a half-made run by it.
    """
    check_links(run)
    writable(run)
    write_json(run / MANIFEST, {"format": FORMAT, "complete": False})
    write_json(run / CONFIG, _from(run, config))


def _from(run: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A config whose base is given from the run: a run and its data may then be moved together."""
    base = config.get("base")
    return config if base is None else config | {"base": os.path.relpath(os.path.realpath(base), os.path.realpath(run))}


def read_config(path: Path) -> Any:
    """The config in a file, its base as an absolute path."""
    config = read_json(path)
    if isinstance(config, dict) and isinstance(config.get("base"), str):
        config["base"] = os.path.normpath(os.path.join(os.path.realpath(path.parent), config["base"]))
    return config


def manifest(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """What identifies a complete run."""
    target = datamodel.target
    return {
        "format": FORMAT,
        "complete": True,
        "data": datamodel.data,
        "described": datamodel.described,
        "network": architecture(target.network),
        "target": target.fingerprint(),
        "checkpoints": len(target.trajectory),
        "trained": list(target.flat.shapes),
        "dtype": str(target.theta.dtype).removeprefix("torch."),
        "spec": getattr(target.network, "spec", None),
        "recipe": target.recipe.to_dict() if target.recipe is not None else None,
        "loss": loss_name(target.loss),
        "settings": datamodel.settings.to_dict(),
        "versions": {"ddm": _version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def load(
    run: Path | str,
    network: nn.Module | None = None,
    *,
    loss: Loss | None = None,
    device: str | torch.device = "cpu",
) -> DistilledDatamodel:
    """The datamodel of a run. A network or a loss of your own must be given again: files hold no code.

    The training set is read when it is first needed, from where the run's config says. A run that was saved from Python
    does not say: then methods that need it take it as ``train=``.
    """
    run = Path(run)
    check_links(run)
    facts = read_manifest(run)
    if not facts.get("complete"):
        raise InputError(f"the run '{run}' is not complete: start the same ddm fit again, and it goes on.")
    with _described(run):
        return _load(run, facts, network, loss, device)


@contextlib.contextmanager
def _described(run: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"'{run / MANIFEST}' does not describe its run ({error}): make the run again.") from None


def _load(
    run: Path, facts: Mapping[str, Any], network: nn.Module | None, loss: Loss | None, device: str | torch.device
) -> DistilledDatamodel:
    for name in (PARTITION, SYNSET, *((CLASS_SYNSET,) if CLASS_SYNSET in facts["files"] else ())):
        if hash_of(run / name) != facts["files"][name]:
            why = stranger(run / name, facts)
            raise InputError(f"'{run / name}' is not the file that this run was saved with ({why}): restore it.")
    if loss is None and facts["loss"] != loss_name(F.cross_entropy):
        raise InputError(f"the run '{run}' was made with a loss of your own ({facts['loss']}): give it as loss=….")
    pieces = read_pieces(run, facts, network)
    network, config = _network(facts, network, run), read_config(run / CONFIG)
    return DistilledDatamodel(
        Target(network, pieces.trajectory, loss or F.cross_entropy, pieces.recipe, device, facts["data"]),
        pieces.partition,
        pieces.synset,
        pieces.class_synset,
        pieces.settings,
        facts["data"],
        config,
        audited=load_audit(run),
        described=facts.get("described"),
        find=functools.partial(_training_set, run.absolute()) if _names_data(config) else None,
    )


def _names_data(config: Any) -> bool:
    """Whether the config of a run says which data it is of; one that was saved from Python does not."""
    return isinstance(config, dict) and isinstance(config.get("data"), str)


def _training_set(run: Path) -> Samples:
    from ddm.runs.run import training_set

    return training_set(run)


@dataclass(frozen=True)
class Pieces:
    """What lies in a run and its manifest, read and found to be of one training."""

    trajectory: Trajectory
    partition: Partition
    synset: Synset
    class_synset: Synset | None
    recipe: Recipe | None
    settings: Settings


def read_pieces(run: Path, facts: Mapping[str, Any], network: nn.Module | None = None) -> Pieces:
    """The pieces of a complete run with the manifest ``facts``, refused where they do not belong together."""
    with _described(run):
        recipe = Recipe(**facts["recipe"]) if facts["recipe"] is not None else None
        settings = Settings(**facts["settings"])
        trajectory = _trajectory(run, facts, network)
        _check_parameters(run, facts, trajectory[-1])
        partition, synset = load_partition(run / PARTITION), Synset.load(run / SYNSET)
        upper = Synset.load(run / CLASS_SYNSET) if CLASS_SYNSET in facts["files"] else None
    classes = partition.by_class()
    if synset.names != partition.names:
        raise InputError(f"the synset in '{run}' is of other groups than its partition: restore it.")
    if upper is not None and (classes is None or upper.names != classes.names):
        raise InputError(f"the class synset in '{run}' is of other classes than its partition: restore it.")
    for one in (synset, upper):
        if one is not None:
            one.check_made_for(_origin(facts))
    return Pieces(trajectory, partition, synset, upper, recipe, settings)


def _trajectory(run: Path, facts: Mapping[str, Any], network: nn.Module | None) -> Trajectory:
    """The trajectory of a run, refused where it is not of its network and its training.

    Only the last checkpoint is read here. The others are checked against the manifest when they are read.
    """
    hashes = _checkpoint_hashes(facts)
    if PARAMETER_RATES in hashes:
        check_hash(run / TRAJECTORY / PARAMETER_RATES, hashes[PARAMETER_RATES], "restore it or make the run again")
    trajectory = Trajectory.open(run / TRAJECTORY)
    if len(trajectory) != facts["checkpoints"]:
        raise InputError(f"the run '{run}' has lost checkpoints: restore its trajectory or make it again.")
    trajectory.check()
    _same_network(facts, network, trajectory, run)
    if fingerprint_of(facts["network"], trajectory[-1]) != facts["target"]:
        raise InputError(
            f"the trajectory in '{run}' is not the one its synset was made for ({training_of(run, facts)}): "
            "restore it or make the run again."
        )
    if hashes:
        trajectory.expect_hashes(hashes)
    return trajectory


def _checkpoint_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the trajectory's files by name; none in manifests that do not list them."""
    prefix = f"{TRAJECTORY}/"
    return {name.removeprefix(prefix): known for name, known in facts["files"].items() if name.startswith(prefix)}


def stranger(path: Path, facts: Mapping[str, Any]) -> str:
    """What tells a file from the one that a run was saved with, in a few words."""
    try:
        metadata = read_metadata(path)
    except InputError:
        return "it is damaged"
    if path.name == PARTITION:
        same = metadata.get("data", facts["data"]) == facts["data"]
        return "it has changed" if same else "it is of other training data"
    try:
        Synset.load(path).check_made_for(_origin(facts))
    except InputError as error:
        return str(error).partition(": ")[0]
    return "it has changed"


def _origin(facts: Mapping[str, Any]) -> dict[str, str]:
    return {what: facts[what] for what in ("network", "target", "data")}


def training_of(run: Path, facts: Mapping[str, Any]) -> str:
    """What tells the training whose checkpoints lie in a run from the one that belongs there."""
    progress = run / TRAJECTORY / "progress.safetensors"
    known = read_metadata(progress) if progress.exists() else {}
    if "data" in known and not str(known["data"]).startswith(facts["data"]):
        return "it was trained on other data"
    if "recipe" in known and known["recipe"] != facts.get("recipe"):
        return "it was trained by another recipe"
    return "it is another training of the same network"


def check_links(run: Path) -> None:
    """Refuse links that lead out of a run: what is read through them is not of the run, and what is written is lost."""
    for folder, folders, files in os.walk(run):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and leads_out(path, run):
                raise InputError(f"'{path}' is a link that leads out of the run: put what it leads to in its place.")


def _files(run: Path) -> list[str]:
    """The files of a complete run that its manifest answers for, by their names in it."""
    known = [run / name for name in FILES]
    checkpoints = sorted((run / TRAJECTORY).glob("*.safetensors"))
    return [path.relative_to(run).as_posix() for path in (*known, *checkpoints) if path.exists()]


def read_manifest(run: Path) -> dict[str, Any]:
    """The manifest of a run directory, as it was written."""
    facts = read_facts(run)
    if is_sealed(facts) is False:
        raise InputError(f"'{run / MANIFEST}' is not as it was written: restore it or make the run again.")
    return facts


def read_facts(run: Path) -> dict[str, Any]:
    """The manifest of a run directory, changed or not, its format and the kinds of its values checked."""
    if not (run / MANIFEST).is_file():
        raise InputError(f"'{run}' is not a run: make one with ddm fit … --out {run}.")
    facts = read_json(run / MANIFEST)
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int) or facts["format"] < 1:
        raise InputError(f"'{run / MANIFEST}' does not describe a run: restore it or make the run again.")
    if facts["format"] > FORMAT:
        raise InputError(f"'{run}' was written in format {facts['format']}, newer than this ddm reads: update ddm.")
    for name, kinds in _KINDS.items():
        if facts.get("complete") and not isinstance(facts.get(name), kinds):
            raise InputError(f"'{run / MANIFEST}' does not name the {name} of its run: restore it.")
    return facts


def check_same(run: Path, datamodel: DistilledDatamodel) -> None:
    """Refuse to overwrite a run of another dataset or another network."""
    facts = read_manifest(run)
    mine = manifest(datamodel)
    for what in ("data", "network"):
        if facts.get(what) not in (None, mine[what]):
            raise InputError(f"'{run}' holds a run with another {what}: choose another folder.")


def writable(run: Path) -> None:
    """Make the folder of a run, or refuse in one sentence."""
    try:
        make_folder(run)
    except OSError as error:
        raise InputError(f"cannot make the folder '{run}' ({error.strerror}): choose another --out.") from None
    if not os.access(run, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into '{run}': choose another --out.")


def save_audit(audit: Audit, run: Path) -> None:
    """Keep what an audit found of the synset in a run."""
    write_json(run / AUDIT, sealed(audit.to_dict() | {"of": hash_of(run / SYNSET)}))


def load_audit(run: Path) -> Audit | None:
    """What an audit found of the synset in a run, unless there was none or the synset is another one since."""
    if not (run / AUDIT).exists():
        return None
    values = read_table(run / AUDIT)
    if is_sealed(values) is False:
        raise InputError(f"'{run / AUDIT}' is not as it was written: delete it, and ddm audit makes it again.")
    if values.get("of") != hash_of(run / SYNSET):
        return None
    return Audit.from_dict(values)


def save_partition(partition: Partition, path: Path, data: str | None = None) -> None:
    """Write a partition as safetensors, with the fingerprint of the training set it is of."""
    tensors = {"groups": torch.as_tensor(partition.groups)}
    if partition.parents is not None:
        tensors["parents"] = torch.as_tensor(partition.parents)
    write_tensors(path, tensors, {"names": partition.names, "classes": partition.classes, "data": data})


def load_partition(path: Path) -> Partition:
    """Read a partition that ``save_partition`` wrote."""
    tensors, metadata = read_tensors(path), read_metadata(path)
    try:
        parents = tensors["parents"].numpy() if "parents" in tensors else None
        groups, names, classes = tensors["groups"].numpy(), tuple(metadata["names"]), tuple(metadata["classes"])
    except (KeyError, TypeError) as error:
        raise InputError(f"'{path}' lacks {error}: restore it or make the run again.") from None
    known = is_names(names) and is_names(classes)
    if not known or not _numbers(groups, len(names)) or len(np.unique(groups)) != len(names):
        raise InputError(f"'{path}' does not hold a group for each sample: restore it or make the run again.")
    if parents is not None and (len(parents) != len(names) or not _numbers(parents, len(classes))):
        raise InputError(f"'{path}' does not hold a class for each group: restore it or make the run again.")
    return Partition(groups, names, parents, classes)


def _numbers(values: np.ndarray, count: int) -> bool:
    """Whether these are whole numbers ``(n,)`` in ``0 … count − 1``."""
    whole = values.ndim == 1 and values.dtype == np.int64 and len(values) > 0
    return whole and bool(values.min() >= 0 and values.max() < count)


def _network(facts: Mapping[str, Any], network: nn.Module | None, run: Path) -> nn.Module:
    """The network of a run: the one given, if it is the same, or a built-in one made again."""
    if network is None:
        if facts["spec"] is None:
            raise InputError(f"the run '{run}' is of a network of your own: give it again as network=….")
        network = networks.from_spec(facts["spec"])
    network = copy.deepcopy(network).to(getattr(torch, facts["dtype"]))
    parameters = dict(network.named_parameters())
    _check_trained(run, facts, parameters)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in facts["trained"])
    return network


def _check_parameters(run: Path, facts: Mapping[str, Any], state: State) -> None:
    """Refuse a manifest that names no type of parameters, no loss, or no trained parameters of a checkpoint."""
    if facts["dtype"] not in _DTYPES:
        raise InputError(f"'{run / MANIFEST}' names no type of parameters: restore it or make the run again.")
    if not isinstance(facts["loss"], str):
        raise InputError(f"'{run / MANIFEST}' names no loss: restore it or make the run again.")
    _check_trained(run, facts, state)


def _check_trained(run: Path, facts: Mapping[str, Any], known: Collection[str]) -> None:
    if not (facts["trained"] and is_names(facts["trained"]) and set(facts["trained"]) <= set(known)):
        raise InputError(f"'{run / MANIFEST}' does not name what was trained: restore it or make the run again.")


def check_loads(run: Path, facts: Mapping[str, Any]) -> None:
    """Refuse a complete run that ``load`` would refuse; a network of the user's own is not at hand to build."""
    with _described(run):
        if facts["spec"] is None:
            read_pieces(run, facts)
        else:
            _load(run, facts, None, F.cross_entropy, "cpu")


def _same_network(facts: Mapping[str, Any], network: nn.Module | None, trajectory: Trajectory, run: Path) -> None:
    """Refuse another network than a run's, before one is built whose size only the manifest knows."""
    if network is None and facts["spec"] is not None:
        network = networks.outline(facts["spec"])
    if network is None:
        return
    if architecture(network) != facts["network"] or _structure(network) != _structure_of(facts["spec"]):
        raise InputError(f"the run '{run}' is of another network: {_unlike(network, facts)}.")
    check_state(trajectory[-1], shapes_of(network), f"the trajectory in '{run}'")


def _unlike(network: nn.Module, facts: Mapping[str, Any]) -> str:
    """In what a network differs from the one of a manifest, in a few words."""
    here, there = (re.split(r": |(?<=\]) ", text) for text in (architecture(network), facts["network"]))
    for one, other in itertools.zip_longest(here, there, fillvalue="nothing"):
        if one != other:
            return f"{other} there, {one} in the one given"
    spec, known = _structure(network) or {}, _structure_of(facts["spec"]) or {}
    names = [name for name in {**spec, **known} if spec.get(name) != known.get(name)]
    return ", ".join(f"{name} is {known.get(name)} there, {spec.get(name)} in the one given" for name in names)


def _structure(network: nn.Module) -> dict[str, Any] | None:
    return _structure_of(getattr(network, "spec", None))


def _structure_of(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """A built-in network's options less those that only draw its first weights."""
    return spec and {name: value for name, value in spec.items() if name not in ("init", "seed")}


def _config(datamodel: DistilledDatamodel) -> dict[str, Any]:
    recipe = datamodel.target.recipe
    return {
        "data": None,
        "recipe": recipe.to_dict() if recipe is not None else None,
        "settings": datamodel.settings.to_dict(),
    }


def _version() -> str:
    from ddm import __version__

    return __version__
