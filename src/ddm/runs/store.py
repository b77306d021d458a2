"""Save a datamodel as a run directory, and load it again. ``ddm.runs.folder`` lists the files."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ddm.compute.files import add_checksum, has_valid_checksum, hash_file, read_json_object, write_json
from ddm.data.losses import Loss
from ddm.data.tasks import Task
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Distilled, Settings
from ddm.distil.kept import KeptResponses
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.networks.state import fingerprint_of
from ddm.runs.config import read_config
from ddm.runs.folder import (
    AUDIT,
    CLASS_SYNSET,
    CONFIG,
    EVIDENCE,
    MANIFEST,
    PARTITION,
    PARTS,
    RESPONSES,
    SYNSET,
    TRAJECTORY,
    answers_file,
    check_links,
)
from ddm.runs.inputs import training_set
from ddm.runs.manifest import (
    begin_run,
    check_free,
    check_parameters,
    check_replaceable,
    checkpoint_hashes,
    explain_other_file,
    explain_other_trajectory,
    factory_of,
    origin_of,
    read_manifest,
    refuse_bad_manifest,
    write_manifest,
)
from ddm.runs.network import build_by_factory, check_network, rebuild_network
from ddm.runs.partition_file import load_partition, save_partition
from ddm.training.recipe import Recipe
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory
from ddm.truth.audit import Audit
from ddm.truth.evidence import Evidence


def save(datamodel: DistilledDatamodel, run: Path) -> None:
    """Write a complete run. Until the manifest is written last, the run counts as incomplete."""
    trajectory = datamodel.target.trajectory
    check_links(run)
    in_place = trajectory.directory is not None and trajectory.directory.resolve() == (run / TRAJECTORY).resolve()
    check_free(run, (TRAJECTORY, PARTS) if in_place else ())
    if (run / MANIFEST).exists():
        check_replaceable(run, datamodel)
    begin_run(run, datamodel.config or _config_from_python(datamodel))
    if not in_place:
        shutil.rmtree(run / TRAJECTORY, ignore_errors=True)
        trajectory.save(run / TRAJECTORY)
    save_partition(datamodel.partition, run / PARTITION, datamodel.data)
    _save_distilled(datamodel.distilled, run)
    write_manifest(datamodel, run)
    if datamodel.audited is not None:
        save_audit(datamodel.audited, run)
    if datamodel.evidence is not None:
        datamodel.evidence.save(run / EVIDENCE)
    else:
        (run / EVIDENCE).unlink(missing_ok=True)
    shutil.rmtree(run / PARTS, ignore_errors=True)


def _save_distilled(distilled: Distilled, run: Path) -> None:
    """Write the synsets and the kept responses, and delete those that an earlier run left."""
    parts: dict[str, Synset | KeptResponses | None] = {
        SYNSET: distilled.synset,
        CLASS_SYNSET: distilled.class_synset,
        RESPONSES: distilled.responses,
    }
    for name, part in parts.items():
        if part is None:
            (run / name).unlink(missing_ok=True)
        else:
            part.save(run / name)


def add_synset(datamodel: DistilledDatamodel, run: Path) -> None:
    """Write the synsets of a datamodel into its complete run.

    The manifest is written last, so that a killed command leaves the run as it was.
    """
    for name, synset in ((SYNSET, datamodel.distilled.synset), (CLASS_SYNSET, datamodel.distilled.class_synset)):
        if synset is not None:
            synset.save(run / name)
    write_manifest(datamodel, run)


def _config_from_python(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """The config of a datamodel that was fitted in Python: it does not name its data."""
    recipe = datamodel.target.recipe
    return {
        "data": None,
        "recipe": recipe.to_dict() if recipe is not None else None,
        "settings": datamodel.settings.to_dict(),
    }


def load(
    run: Path | str,
    network: nn.Module | None = None,
    *,
    loss: Loss | None = None,
    factory: str | None = None,
    device: str | torch.device = "cpu",
) -> DistilledDatamodel:
    """The datamodel of a run. Files hold no code, so give your own network or loss again.

    factory: the name that the run was saved with, such as ``"package.module:make"``. It is imported and called with the
             arguments that the run stores, and builds the network

    The training set is read when a method first needs it, from the place that the run's config names. A run that was
    saved from Python names no place: pass ``train=`` to the methods that need the training set.
    """
    run = Path(run)
    check_links(run)
    manifest = read_manifest(run)
    if not manifest.get("complete"):
        raise InputError(f"the run '{run}' is not complete: start the same ddm fit again to resume it.")
    with refuse_bad_manifest(run):
        network = build_by_factory(manifest, factory, run) if network is None else network
        return _load(run, manifest, network, loss, device)


def check_loads(run: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a complete run that ``load`` would refuse.

    The user's own network is not available here; all checks that do not need it are made.
    """
    with refuse_bad_manifest(run):
        factory_of(manifest)
        if manifest["spec"] is None:
            _read_parts(run, manifest)
        else:
            _load(run, manifest, None, F.cross_entropy, "cpu")


def _load(
    run: Path, manifest: Mapping[str, Any], network: nn.Module | None, loss: Loss | None, device: str | torch.device
) -> DistilledDatamodel:
    _check_hashes(run, manifest)
    usual = Task(manifest.get("task", "classification"))
    if loss is None and manifest["loss"] != usual.loss.name:
        raise InputError(f"the run '{run}' was made with a loss of your own ({manifest['loss']}): give it as loss=….")
    parts = _read_parts(run, manifest, network)
    network, config = rebuild_network(manifest, network, run), read_config(run / CONFIG)
    names_data = isinstance(config, dict) and isinstance(config.get("data"), str)
    return DistilledDatamodel(
        Target(
            network,
            parts.trajectory,
            loss or usual,
            parts.recipe,
            device,
            manifest["data"],
            displaced=manifest["trained"] if "retrained" in manifest else None,
        ),
        parts.partition,
        parts.distilled.synset,
        parts.distilled.class_synset,
        parts.settings,
        manifest["data"],
        config,
        audited=load_audit(run),
        described=manifest.get("described"),
        find=functools.partial(training_set, run.absolute()) if names_data else None,
        responses=parts.distilled.responses,
        evidence=parts.evidence,
        factory=factory_of(manifest),
    )


def _check_hashes(run: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a partition, synset or file of responses that is not the file that the manifest lists."""
    listed = [name for name in (SYNSET, CLASS_SYNSET, RESPONSES) if name in manifest["files"]]
    for name in dict.fromkeys((PARTITION, answers_file(manifest["files"]), *listed)):
        if hash_file(run / name) != manifest["files"][name]:
            why = explain_other_file(run / name, manifest)
            raise InputError(f"'{run / name}' is not the file that this run was saved with ({why}): restore it.")


@dataclass(frozen=True)
class _Parts:
    """The contents of a run's files, checked to belong to one training."""

    trajectory: Trajectory
    partition: Partition
    distilled: Distilled
    recipe: Recipe | None
    settings: Settings
    evidence: Evidence | None


def _read_parts(run: Path, manifest: Mapping[str, Any], network: nn.Module | None = None) -> _Parts:
    recipe = Recipe(**manifest["recipe"]) if manifest["recipe"] is not None else None
    settings = Settings(**manifest["settings"])
    trajectory = _open_trajectory(run, manifest, network)
    check_parameters(run, manifest, trajectory[-1])
    partition, distilled = load_partition(run / PARTITION), _read_distilled(run, manifest)
    _check_groups(run, partition, distilled)
    distilled.check_made_for(origin_of(manifest))
    if distilled.responses is not None:
        last = trajectory[-1]
        distilled.responses.check_size(sum(last[name].numel() for name in manifest["trained"]))
    evidence = Evidence.load(run / EVIDENCE) if (run / EVIDENCE).exists() else None
    if evidence is not None:
        evidence.check_made_for(origin_of(manifest), partition.names)
    return _Parts(trajectory, partition, distilled, recipe, settings, evidence)


def _read_distilled(run: Path, manifest: Mapping[str, Any]) -> Distilled:
    """The synsets and kept responses that the manifest lists. A file that it does not list is not read."""
    listed = manifest["files"]
    return Distilled(
        Synset.load(run / SYNSET) if SYNSET in listed else None,
        Synset.load(run / CLASS_SYNSET) if CLASS_SYNSET in listed else None,
        KeptResponses.load(run / RESPONSES) if RESPONSES in listed else None,
    )


def _check_groups(run: Path, partition: Partition, distilled: Distilled) -> None:
    """Refuse synsets and responses of other groups or classes than those of the partition."""
    upper, responses = partition.by_class(), distilled.responses
    classes = () if upper is None else upper.names
    found = [("synset", distilled.synset, partition.names), ("class synset", distilled.class_synset, classes)]
    for what, synset, names in found:
        if synset is not None and synset.names != names:
            kind = "classes" if what == "class synset" else "groups"
            raise InputError(f"the {what} in '{run}' is of other {kind} than its partition: restore it.")
    if responses is not None and (responses.clusters.names, responses.classes.names) != (partition.names, classes):
        raise InputError(f"the responses in '{run}' are of other groups than its partition: restore them.")


def _open_trajectory(run: Path, manifest: Mapping[str, Any], network: nn.Module | None) -> Trajectory:
    """The trajectory of a run; one of another network or training is refused.

    Only the last checkpoint is read here. The others are checked against the manifest when they are first read.
    """
    hashes = checkpoint_hashes(manifest)
    trajectory = Trajectory.open(run / TRAJECTORY)
    trajectory.released = manifest.get("released") is True
    if len(trajectory) != manifest["checkpoints"]:
        raise InputError(f"the run '{run}' has lost checkpoints: restore its trajectory or make the run again.")
    trajectory.check()
    check_network(manifest, network, trajectory[-1], run)
    if fingerprint_of(manifest["network"], trajectory[-1]) != manifest["target"]:
        raise InputError(
            f"the trajectory in '{run}' is not the one its synset was made for "
            f"({explain_other_trajectory(run, manifest)}): restore it or make the run again."
        )
    if hashes:
        trajectory.expect_hashes(hashes)
    return trajectory


def save_audit(audit: Audit, run: Path) -> None:
    """Store an audit with the hash of the responses or of the synset that it speaks of."""
    write_json(run / AUDIT, add_checksum(audit.to_dict() | {"of": _answers_hash(run)}))


def _answers_hash(run: Path) -> str:
    """The hash of the file from which answers come, as the manifest lists it."""
    files = read_manifest(run)["files"]
    listed: str = files[answers_file(files)]
    return listed


def load_audit(run: Path) -> Audit | None:
    """The audit of a run; None if there is none, or if the responses or the synset have been replaced since."""
    if not (run / AUDIT).exists():
        return None
    values = read_json_object(run / AUDIT)
    if has_valid_checksum(values) is False:
        raise InputError(f"'{run / AUDIT}' has changed since it was written: delete it, and ddm audit makes it again.")
    if values.get("of") != _answers_hash(run):
        return None
    return Audit.from_dict(values)
