"""Check a run: each file is as it was written, all belong to one training, and the training data are the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddm.compute.files import has_valid_checksum, hash_file, read_json, read_json_object
from ddm.compute.tensors import is_intact
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.runs import store
from ddm.runs.folder import (
    AUDIT,
    CONFIG,
    EVIDENCE,
    EXACT,
    FILES,
    MANIFEST,
    PARTITION,
    PARTS,
    TRAJECTORY,
    answers_file,
    check_links,
)
from ddm.runs.manifest import explain_other_file, explain_other_trajectory, parse_manifest
from ddm.truth.audit import Audit

WHOLE = "whole"
"""The file is as it was written."""
DAMAGED = "damaged"
"""The file has changed since it was written."""
MISSING = "missing"
"""The manifest lists the file, but the run lacks it."""
FOREIGN = "foreign"
"""The file is as it was written, but for another run."""
UNCHECKED = "unchecked"
"""There is no checksum to check the file by."""
OTHER = "other"
"""The file does not belong to a run."""

TOGETHER, DATA = "the files together", "the training data"
"""Names of the two checks beside those of single files."""


@dataclass(frozen=True)
class Check:
    """The state of one file, of the files together, or of the training data."""

    name: str
    state: str
    why: str = ""

    @property
    def bad(self) -> bool:
        """True if this check failed, so that the run should not be used."""
        return self.state in (DAMAGED, MISSING, FOREIGN)


@dataclass(frozen=True)
class Verification:
    """The result of verifying a run.

    run:      its folder
    complete: True if it was finished
    checked:  one check per file, then the files together and the training data
    """

    run: str
    complete: bool
    checked: tuple[Check, ...]

    @property
    def bad(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checked if check.bad]

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.bad:
            named = "; ".join(
                f"{check.name} is {check.state}" + (f" ({check.why})" if check.why else "") for check in self.bad[:3]
            )
            more = f"; and {len(self.bad) - 3} more" if len(self.bad) > 3 else ""
            return f"the run '{self.run}' is not whole: {named}{more}."
        if not self.complete:
            return (
                f"the files of the run '{self.run}' are whole, but the run is not complete: "
                "start the same ddm fit again to resume it."
            )
        unchecked = [check.name for check in self.checked if check.state == UNCHECKED]
        if not unchecked:
            return f"the run '{self.run}' is whole."
        more = f" and {len(unchecked) - 3} more" if len(unchecked) > 3 else ""
        return f"the run '{self.run}' is whole, but not checked: {', '.join(unchecked[:3])}{more}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "run": self.run,
            "whole": not self.bad,
            "complete": self.complete,
            "sentence": self.sentence,
            "checked": [asdict(check) for check in self.checked],
        }


def verify(run: Path, train: Samples | Callable[[], Samples | str] | None = None) -> Verification:
    """Check every file of a run, that the files belong together, and that the training data are the run's own.

    train: the training set, or a function that loads it after the files are checked; if there is none, the function
           returns the reason as text
    """
    check_links(run)
    manifest = parse_manifest(run)
    complete = bool(manifest.get("complete"))
    checks = [_check_manifest(manifest)]
    if complete:
        checks += [_check_listed(run, name, known, manifest) for name, known in _listed_files(run, manifest).items()]
    checks += list(_check_unlisted(run, manifest, {check.name for check in checks}))
    if complete and not any(check.bad for check in checks):
        checks += [_check_together(run, manifest), _check_data(manifest, train() if callable(train) else train)]
    return Verification(str(run), complete, tuple(checks))


def _check_manifest(manifest: Mapping[str, Any]) -> Check:
    unchanged = has_valid_checksum(manifest)
    if unchanged is None:
        return Check(MANIFEST, UNCHECKED, "it holds no checksum of its own")
    return Check(MANIFEST, WHOLE) if unchanged else Check(MANIFEST, DAMAGED, "it has changed")


def _listed_files(run: Path, manifest: Mapping[str, Any]) -> dict[str, str | None]:
    """The files that a complete run must have, each with its checksum if the manifest holds one."""
    known: dict[str, str | None] = manifest["files"]
    if any(PurePosixPath(name).is_absolute() or ".." in name for name in known):
        raise InputError(f"'{run / MANIFEST}' names files outside of its run: restore it.")
    return dict.fromkeys((CONFIG, PARTITION, answers_file(known))) | known


def _check_listed(run: Path, name: str, known: str | None, manifest: Mapping[str, Any]) -> Check:
    path = run / name
    if not os.path.exists(path):  # Path.exists raises an error for names that are too long
        return Check(name, MISSING)
    if known is None:
        return _check_alone(path, name)
    if hash_file(path) == known:
        return Check(name, WHOLE)
    alone = _check_alone(path, name)
    if alone.bad or path.suffix != ".safetensors":
        return Check(name, DAMAGED, alone.why or "it has changed")
    if path.parent.name == TRAJECTORY:
        return Check(name, FOREIGN, explain_other_trajectory(run, manifest))
    return Check(name, FOREIGN, explain_other_file(path, manifest))


def _check_alone(path: Path, name: str) -> Check:
    """Check a file by the checksum that it holds itself."""
    try:
        if path.suffix == ".json":
            read_json(path)
            return Check(name, UNCHECKED, "it holds no checksum")
        whole = is_intact(path)
    except InputError as error:
        return Check(name, DAMAGED, str(error).removesuffix(".").replace(f"'{path}'", "it"))
    if whole is None:
        return Check(name, UNCHECKED, "it holds no checksum")
    return Check(name, WHOLE) if whole else Check(name, DAMAGED, "it has changed")


def _check_unlisted(run: Path, manifest: Mapping[str, Any], listed: set[str]) -> Iterator[Check]:
    """Check the files that the manifest does not list."""
    lists_trajectory = any(name.startswith(TRAJECTORY) for name in listed)
    for path in sorted(path for path in run.rglob("*") if not path.is_dir()):
        name = path.relative_to(run).as_posix()
        top = name.partition("/")[0]
        if name in listed:
            continue
        if any(part.startswith(".") for part in PurePosixPath(name).parts):
            yield Check(name, OTHER, "hidden, perhaps left by an interrupted write")
        elif name == AUDIT:
            yield _check_audit(run, manifest)
        elif top == TRAJECTORY and lists_trajectory:
            yield Check(name, FOREIGN, "the run was saved without it")
        elif top in (TRAJECTORY, PARTS, EXACT) or name in (EVIDENCE, *FILES):
            yield _check_alone(path, name)
        else:
            yield Check(name, OTHER)


def _check_audit(run: Path, manifest: Mapping[str, Any]) -> Check:
    try:
        values = read_json_object(run / AUDIT)
        Audit.from_dict(values)
    except InputError as error:
        return Check(AUDIT, DAMAGED, str(error).removesuffix("."))
    if has_valid_checksum(values) is False:
        return Check(AUDIT, DAMAGED, "it has changed")
    if manifest.get("complete") and values.get("of") != manifest["files"].get(name := answers_file(manifest["files"])):
        return Check(AUDIT, FOREIGN, f"it was made for another {name}")
    return Check(AUDIT, UNCHECKED if has_valid_checksum(values) is None else WHOLE)


def _check_together(run: Path, manifest: Mapping[str, Any]) -> Check:
    """Check that all files belong to one training and that the run loads."""
    try:
        store.check_loads(run, manifest)
    except InputError as error:
        return Check(TOGETHER, FOREIGN, str(error).removesuffix("."))
    return Check(TOGETHER, WHOLE)


def _check_data(manifest: Mapping[str, Any], train: Samples | str | None) -> Check:
    """Check that the training set is the one that the run was made with."""
    if train is None or isinstance(train, str):
        return Check(DATA, UNCHECKED, train or "it was not given")
    if train.fingerprint() == manifest["data"]:
        return Check(DATA, WHOLE)
    return Check(DATA, FOREIGN, train.difference_from(manifest.get("described")))
