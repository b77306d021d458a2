"""The run directory: everything a datamodel is, in files that are whole or absent, none of them pickled.

    manifest.json                  format version, fingerprints, versions of libraries, and whether the run is complete
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

import copy
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ddm import networks
from ddm.audit import Audit
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.files import hash_of, read_json, read_metadata, read_tensors, write_json, write_tensors
from ddm.matching import Settings
from ddm.partition import Partition
from ddm.recipe import Recipe
from ddm.synset import Synset
from ddm.target import Loss, Target, architecture, loss_name
from ddm.trajectory import Trajectory

FORMAT = 1

MANIFEST, CONFIG = "manifest.json", "config.json"
TRAJECTORY, PARTS, EXACT, AUDIT = "trajectory", "parts", "exact", "audit.json"
PARTITION, SYNSET, CLASS_SYNSET = "partition.safetensors", "synset.safetensors", "synset-class.safetensors"


def save(datamodel: DistilledDatamodel, run: Path) -> None:
    """Write a complete run."""
    target = datamodel.target
    if (run / MANIFEST).exists():
        check_same(run, datamodel)
    begin(run, datamodel.config or _config(datamodel))
    if target.trajectory.directory is None or target.trajectory.directory.resolve() != (run / TRAJECTORY).resolve():
        shutil.rmtree(run / TRAJECTORY, ignore_errors=True)
        target.trajectory.save(run / TRAJECTORY)
    save_partition(datamodel.partition, run / PARTITION)
    datamodel.synset.save(run / SYNSET)
    (run / CLASS_SYNSET).unlink(missing_ok=True)
    if datamodel.class_synset is not None:
        datamodel.class_synset.save(run / CLASS_SYNSET)
    files = [name for name in (PARTITION, SYNSET, CLASS_SYNSET) if (run / name).exists()]
    write_json(run / MANIFEST, manifest(datamodel) | {"files": {name: hash_of(run / name) for name in files}})
    if datamodel.audited is not None:
        save_audit(datamodel.audited, run)
    shutil.rmtree(run / PARTS, ignore_errors=True)


def begin(run: Path, config: dict[str, Any]) -> None:
    """Say what a run is going to hold; until its manifest is written again it is not complete."""
    writable(run)
    write_json(run / MANIFEST, {"format": FORMAT, "complete": False})
    write_json(run / CONFIG, config)


def manifest(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """What identifies a complete run."""
    target = datamodel.target
    return {
        "format": FORMAT,
        "complete": True,
        "data": datamodel.data,
        "network": architecture(target.network),
        "target": target.fingerprint(),
        "checkpoints": len(target.trajectory),
        "trained": list(target.flat.shapes),
        "dtype": str(target.theta.dtype).removeprefix("torch."),
        "spec": getattr(target.network, "spec", None),
        "recipe": asdict(target.recipe) if target.recipe is not None else None,
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
    """The datamodel of a run. A network or a loss of your own must be given again: files hold no code."""
    run = Path(run)
    facts = read_manifest(run)
    if not facts.get("complete"):
        raise InputError(f"the run '{run}' is not complete: start the same ddm fit again, and it goes on.")
    try:
        return _load(run, facts, network, loss, device)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{run / MANIFEST}' does not describe its run ({error}): make the run again.") from None


def _load(
    run: Path, facts: dict[str, Any], network: nn.Module | None, loss: Loss | None, device: str | torch.device
) -> DistilledDatamodel:
    for name, known in facts["files"].items():
        if hash_of(run / name) != known:
            raise InputError(f"'{run / name}' is not the file that this run was saved with: restore it.")
    if loss is None and facts["loss"] != loss_name(F.cross_entropy):
        raise InputError(f"the run '{run}' was made with a loss of your own ({facts['loss']}): give it as loss=….")
    trajectory = Trajectory.open(run / TRAJECTORY)
    if len(trajectory) != facts["checkpoints"]:
        raise InputError(f"the run '{run}' has lost checkpoints: restore its trajectory or make it again.")
    recipe = Recipe(**facts["recipe"]) if facts["recipe"] is not None else None
    target = Target(_network(facts, network, run), trajectory, loss or F.cross_entropy, recipe, device, facts["data"])
    if target.fingerprint() != facts["target"]:
        raise InputError(f"the trajectory in '{run}' is not the one its synset was made for: make the run again.")
    return DistilledDatamodel(
        target,
        load_partition(run / PARTITION),
        Synset.load(run / SYNSET),
        Synset.load(run / CLASS_SYNSET) if CLASS_SYNSET in facts["files"] else None,
        Settings(**facts["settings"]),
        facts["data"],
        read_json(run / CONFIG),
        audited=load_audit(run),
    )


def read_manifest(run: Path) -> dict[str, Any]:
    """The manifest of a run directory, its format checked."""
    if not (run / MANIFEST).is_file():
        raise InputError(f"'{run}' is not a run: make one with ddm fit … --out {run}.")
    facts = read_json(run / MANIFEST)
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise InputError(f"'{run / MANIFEST}' does not describe a run: restore it or make the run again.")
    if facts["format"] > FORMAT:
        raise InputError(f"'{run}' was written in format {facts['format']}, newer than this ddm reads: update ddm.")
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
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder '{run}' ({error.strerror}): choose another --out.") from None
    if not os.access(run, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into '{run}': choose another --out.")


def save_audit(audit: Audit, run: Path) -> None:
    """Keep what an audit found of the synset in a run."""
    write_json(run / AUDIT, audit.to_dict() | {"of": hash_of(run / SYNSET)})


def load_audit(run: Path) -> Audit | None:
    """What an audit found of the synset in a run, unless there was none or the synset is another one since."""
    if not (run / AUDIT).exists():
        return None
    values = read_json(run / AUDIT)
    if isinstance(values, dict) and values.get("of") != hash_of(run / SYNSET):
        return None
    return Audit.from_dict(values)


def save_partition(partition: Partition, path: Path) -> None:
    """Write a partition as safetensors."""
    tensors = {"groups": torch.as_tensor(partition.groups)}
    if partition.parents is not None:
        tensors["parents"] = torch.as_tensor(partition.parents)
    write_tensors(path, tensors, {"names": partition.names, "classes": partition.classes})


def load_partition(path: Path) -> Partition:
    """Read a partition that ``save_partition`` wrote."""
    tensors, metadata = read_tensors(path), read_metadata(path)
    try:
        parents = tensors["parents"].numpy() if "parents" in tensors else None
        return Partition(tensors["groups"].numpy(), tuple(metadata["names"]), parents, tuple(metadata["classes"]))
    except KeyError as error:
        raise InputError(f"'{path}' lacks {error}: restore it or make the run again.") from None


def _network(facts: dict[str, Any], network: nn.Module | None, run: Path) -> nn.Module:
    """The network of a run: the one given, if it is the same, or a built-in one made again."""
    if network is None:
        if facts["spec"] is None:
            raise InputError(f"the run '{run}' is of a network of your own: give it again as network=….")
        network = networks.from_spec(facts["spec"])
    if architecture(network) != facts["network"] or _structure(network) != _structure_of(facts["spec"]):
        raise InputError(f"the run '{run}' is of another network: {facts['network'][:80]}….")
    network = copy.deepcopy(network).to(getattr(torch, facts["dtype"]))
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in facts["trained"])
    return network


def _structure(network: nn.Module) -> dict[str, Any] | None:
    return _structure_of(getattr(network, "spec", None))


def _structure_of(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """A built-in network's options less those that only draw its first weights."""
    return spec and {name: value for name, value in spec.items() if name not in ("init", "seed")}


def _config(datamodel: DistilledDatamodel) -> dict[str, Any]:
    recipe = datamodel.target.recipe
    return {
        "data": None,
        "recipe": asdict(recipe) if recipe is not None else None,
        "settings": datamodel.settings.to_dict(),
    }


def _version() -> str:
    from ddm import __version__

    return __version__
