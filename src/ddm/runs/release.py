"""Release a run: a run directory that others may have, because its answers come from the synset alone.

It has the partition, the synsets and the last checkpoint. It has no kept responses, no retrained models, no audit (an
audit of the kept responses says nothing about the synset), and none of the earlier checkpoints: loading and answering
need the trained network only. So ``shares``, ``audit`` and other retraining are refused there.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from ddm.compute.files import write_json
from ddm.compute.folders import check_empty
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.runs import store
from ddm.runs.folder import CLASS_SYNSET, CONFIG, MANIFEST, PARTITION, SUMMARY, SYNSET, TRAJECTORY
from ddm.runs.manifest import begin_run, read_manifest

_ALLOWED = {MANIFEST, CONFIG, SUMMARY, PARTITION, SYNSET, CLASS_SYNSET, f"{TRAJECTORY}/00000.safetensors"}
"""The files that a released run may have."""


def release(datamodel: DistilledDatamodel, out: Path, summary: dict[str, Any] | None = None) -> list[str]:
    """Write a run for release into a new or empty folder, check it, and return the names of its files.

    summary: the run in numbers (``ddm.runs.run.summarise``)
    """
    check_empty(out, "a folder for a release")
    begin_run(out, {})
    if summary is not None:
        write_json(out / SUMMARY, summary | {"kept_bytes": 0})
    store.save(_without_responses(datamodel), out)
    return check_released(out)


def check_released(run: Path) -> list[str]:
    """The names of all files of a released run. A run with any other file, or with kept responses, is refused."""
    found = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if not path.is_dir())
    for name in found:
        if name not in _ALLOWED:
            raise InputError(f"'{run / name}' must not be released: delete it.")
    listed = read_manifest(run)
    if not listed.get("released") or SYNSET not in listed["files"]:
        raise InputError(f"'{run}' is not a run for release: make one with ddm distil … --release.")
    return found


def _without_responses(datamodel: DistilledDatamodel) -> DistilledDatamodel:
    """The datamodel with its synsets and the trained network alone."""
    target = copy.copy(datamodel.target)
    target.trajectory = datamodel.target.trajectory.final()
    return DistilledDatamodel(
        target,
        datamodel.partition,
        datamodel.synset,
        datamodel.class_synset,
        datamodel.settings,
        datamodel.data,
        datamodel.config,
        described=datamodel.training_set.described,
        factory=datamodel.factory,
    )
