"""The manifest of a run: what identifies the run, and the checks that its files belong to it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddm.compute.files import add_checksum, has_valid_checksum, hash_file, read_json, write_json
from ddm.compute.folders import check_empty
from ddm.compute.tensors import read_metadata
from ddm.compute.validation import are_unique_names
from ddm.datamodel import DistilledDatamodel
from ddm.distil.kept import KeptResponses
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.networks.factory import Factory
from ddm.networks.state import architecture
from ddm.runs.config import with_relative_base
from ddm.runs.folder import (
    CONFIG,
    MANIFEST,
    PARTITION,
    RESPONSES,
    TRAJECTORY,
    check_links,
    make_writable,
    manifest_files,
)

FORMAT = 1

_TYPES = dict.fromkeys(("data", "network", "target"), (str,)) | {
    "files": (dict,),
    "described": (dict, type(None)),
}
"""Types of some values of a complete run's manifest; the others are checked where they are used."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def describe(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """The manifest of a complete run, without the checksums of its files."""
    target = datamodel.target
    return {
        "format": FORMAT,
        "complete": True,
        "data": datamodel.data,
        "described": datamodel.training_set.described,
        "network": architecture(target.network),
        "target": target.fingerprint(),
        "checkpoints": len(target.trajectory),
        **({"released": True} if target.trajectory.released else {}),
        "trained": list(target.flat.shapes),
        **({} if len(target.trained) == len(target.flat.shapes) else {"retrained": list(target.trained)}),
        "dtype": str(target.theta.dtype).removeprefix("torch."),
        "spec": getattr(target.network, "spec", None),
        **({} if datamodel.factory is None else {"factory": datamodel.factory.to_json()}),
        "recipe": target.recipe.to_dict() if target.recipe is not None else None,
        "loss": target.loss.name,
        "task": target.task.kind,
        "settings": datamodel.settings.to_dict(),
        "versions": {"ddm": _version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def write_manifest(datamodel: DistilledDatamodel, run: Path) -> None:
    """Mark a run as complete, with the checksum of each file."""
    files = {name: hash_file(run / name) for name in manifest_files(run)}
    write_json(run / MANIFEST, add_checksum(describe(datamodel) | {"files": files}))


def begin_run(run: Path, config: dict[str, Any]) -> None:
    """Write an incomplete manifest and the config.

    The manifest comes first, because ``check_free`` recognises the folder of a killed fit by it.
    """
    check_links(run)
    make_writable(run)
    write_json(run / MANIFEST, {"format": FORMAT, "complete": False})
    write_json(run / CONFIG, with_relative_base(config, run))


def read_manifest(run: Path) -> dict[str, Any]:
    """The manifest of a run; one that has changed since it was written is refused."""
    manifest = parse_manifest(run)
    if has_valid_checksum(manifest) is False:
        raise InputError(f"'{run / MANIFEST}' has changed since it was written: restore it or make the run again.")
    return manifest


def parse_manifest(run: Path) -> dict[str, Any]:
    """The manifest of a run, with its format and the types of its values checked, but not its checksum."""
    if not (run / MANIFEST).is_file():
        raise InputError(f"'{run}' is not a run: make one with ddm fit … --out {run}.")
    manifest = read_json(run / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int) or manifest["format"] < 1:
        raise InputError(f"'{run / MANIFEST}' is not the manifest of a run: restore it or make the run again.")
    if manifest["format"] > FORMAT:
        raise InputError(f"'{run}' was written in format {manifest['format']}, newer than this ddm reads: update ddm.")
    for name, types in _TYPES.items():
        if manifest.get("complete") and not isinstance(manifest.get(name), types):
            raise InputError(f"'{run / MANIFEST}' does not name the {name} of its run: restore it.")
    return manifest


@contextlib.contextmanager
def refuse_bad_manifest(run: Path) -> Iterator[None]:
    """Turn the errors of a manifest with missing or wrong values into one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"'{run / MANIFEST}' does not describe its run ({error}): make the run again.") from None


def check_free(run: Path, allowed: Collection[str] = ()) -> None:
    """Refuse a folder that holds anything but a run: saving there would delete or overwrite the user's files."""
    if (run / MANIFEST).is_file():
        parse_manifest(run)
    else:
        check_empty(run, "a run", allowed)


def check_replaceable(run: Path, datamodel: DistilledDatamodel) -> None:
    """Refuse to overwrite a run of another dataset or another network."""
    stored, new = read_manifest(run), describe(datamodel)
    for name in ("data", "network"):
        if stored.get(name) not in (None, new[name]):
            raise InputError(f"'{run}' holds a run with another {name}: choose another folder.")


def check_parameters(run: Path, manifest: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse a manifest without a known dtype, a loss, or trained parameters among ``names``."""
    if manifest["dtype"] not in _DTYPES:
        raise InputError(f"'{run / MANIFEST}' names no type of parameters: restore it or make the run again.")
    if not isinstance(manifest["loss"], str):
        raise InputError(f"'{run / MANIFEST}' names no loss: restore it or make the run again.")
    check_trained(run, manifest, names)


def check_trained(run: Path, manifest: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse a manifest whose trained parameters are not among ``names``."""
    trained, every = manifest["trained"], manifest.get("retrained", manifest["trained"])
    named = trained and are_unique_names(trained) and are_unique_names(every)
    if not (named and set(trained) <= set(every) <= set(names)):
        raise InputError(f"'{run / MANIFEST}' does not name the trained parameters: restore it or make the run again.")


def factory_of(manifest: Mapping[str, Any]) -> Factory | None:
    """The factory that a manifest names; None if it names none. Nothing is imported."""
    return None if manifest.get("factory") is None else Factory.parse(manifest["factory"])


def origin_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The network, target and data that the synsets and responses of a run must have been made for."""
    return {name: manifest[name] for name in ("network", "target", "data")}


def checkpoint_hashes(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the trajectory's files by name; empty for manifests that do not list them."""
    prefix = f"{TRAJECTORY}/"
    return {name.removeprefix(prefix): known for name, known in manifest["files"].items() if name.startswith(prefix)}


def explain_other_file(path: Path, manifest: Mapping[str, Any]) -> str:
    """Describe how a partition, synset or file of responses differs from the run's own, as a clause."""
    try:
        metadata = read_metadata(path)
    except InputError:
        return "it is damaged"
    if path.name == PARTITION:
        same = metadata.get("data", manifest["data"]) == manifest["data"]
        return "it has changed" if same else "it belongs to other training data"
    kind: type[KeptResponses | Synset] = KeptResponses if path.name == RESPONSES else Synset
    try:
        kind.load(path).check_made_for(origin_of(manifest))
    except InputError as error:
        return str(error).partition(": ")[0]
    return "it has changed"


def explain_other_trajectory(run: Path, manifest: Mapping[str, Any]) -> str:
    """Say how the training of a run's checkpoints differs from the training that belongs there, as a clause."""
    progress = run / TRAJECTORY / "progress.safetensors"
    known = read_metadata(progress) if progress.exists() else {}
    if "data" in known and not str(known["data"]).startswith(manifest["data"]):
        return "it was trained on other data"
    if "recipe" in known and known["recipe"] != manifest.get("recipe"):
        return "it was trained by another recipe"
    return "it is another training of the same network"


def _version() -> str:
    from ddm import __version__

    return __version__
