"""Whether a run is whole: each file as it was written, all of them of one training, and the training data the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddm.compute.files import hash_of, is_sealed, is_whole, read_json, read_table
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.runs import store
from ddm.truth.audit import Audit

WHOLE, DAMAGED, MISSING, FOREIGN, UNCHECKED, OTHER = "whole", "damaged", "missing", "foreign", "unchecked", "other"
"""As written; not as written; not there; as written for something else; nothing to check it by; no part of a run."""

TOGETHER, DATA = "the files together", "the training data"
"""What is checked beside the files."""


@dataclass(frozen=True)
class Checked:
    """What was found of a file, or of what belongs to them all."""

    name: str
    state: str
    why: str = ""

    @property
    def bad(self) -> bool:
        """Whether the run should not be used like this."""
        return self.state in (DAMAGED, MISSING, FOREIGN)


@dataclass(frozen=True)
class Verification:
    """What was found of a run.

    run:      its folder
    complete: whether it was ever finished
    checked:  every file, then what belongs to them all
    """

    run: str
    complete: bool
    checked: tuple[Checked, ...]

    @property
    def bad(self) -> list[Checked]:
        """What is damaged, missing or foreign."""
        return [one for one in self.checked if one.bad]

    @property
    def sentence(self) -> str:
        """What was found, in a sentence."""
        if self.bad:
            told = "; ".join(
                f"{one.name} is {one.state}" + (f" ({one.why})" if one.why else "") for one in self.bad[:3]
            )
            more = f"; and {len(self.bad) - 3} more" if len(self.bad) > 3 else ""
            return f"the run '{self.run}' is not whole: {told}{more}."
        if not self.complete:
            return f"what there is of the run '{self.run}' is whole, but it is not complete: start its ddm fit again."
        left = [one.name for one in self.checked if one.state == UNCHECKED]
        but = f", but nothing tells whether {', '.join(left[:3])} {'is' if len(left) == 1 else 'are'}" if left else ""
        return f"the run '{self.run}' is whole{but}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        checked = [asdict(one) for one in self.checked]
        return {
            "run": self.run,
            "whole": not self.bad,
            "complete": self.complete,
            "sentence": self.sentence,
            "checked": checked,
        }


def verify(run: Path, train: Samples | Callable[[], Samples | str] | None = None) -> Verification:
    """Check every file of a run, that they belong together, and that ``train`` is what it was made with.

    train: the training set, or what finds it once the files are whole; the reason, in words, where there is none
    """
    store.check_links(run)
    facts = store.read_facts(run)
    complete = bool(facts.get("complete"))
    checked = [_manifest(facts)]
    if complete:
        checked += [_listed(run, name, known, facts) for name, known in _named(run, facts).items()]
    checked += list(_others(run, facts, {one.name for one in checked}))
    if complete and not any(one.bad for one in checked):
        checked += [_together(run, facts), _data(facts, train() if callable(train) else train)]
    return Verification(str(run), complete, tuple(checked))


def _manifest(facts: Mapping[str, Any]) -> Checked:
    sealed = is_sealed(facts)
    if sealed is None:
        return Checked(store.MANIFEST, UNCHECKED, "it holds no checksum of its own")
    return Checked(store.MANIFEST, WHOLE) if sealed else Checked(store.MANIFEST, DAMAGED, "it has changed")


def _named(run: Path, facts: Mapping[str, Any]) -> dict[str, str | None]:
    """The files that a complete run must have, each with its checksum where the manifest holds one."""
    known: dict[str, str | None] = facts["files"]
    if any(PurePosixPath(name).is_absolute() or ".." in name for name in known):
        raise InputError(f"'{run / store.MANIFEST}' does not name the files of its run: restore it.")
    return dict.fromkeys((store.CONFIG, store.PARTITION, store.SYNSET)) | known


def _listed(run: Path, name: str, known: str | None, facts: Mapping[str, Any]) -> Checked:
    path = run / name
    if not os.path.exists(path):  # unlike the path's own, it bears names too long for a file
        return Checked(name, MISSING)
    if known is None or hash_of(path) == known:
        return _by_itself(path, name) if known is None else Checked(name, WHOLE)
    found = _by_itself(path, name)
    if found.bad or path.suffix != ".safetensors":
        return Checked(name, DAMAGED, found.why or "it has changed")
    if path.parent.name == store.TRAJECTORY:
        return Checked(name, FOREIGN, store.training_of(run, facts))
    return Checked(name, FOREIGN, store.stranger(path, facts))


def _by_itself(path: Path, name: str) -> Checked:
    """A file by what it says of itself."""
    try:
        if path.suffix == ".json":
            read_json(path)
            return Checked(name, UNCHECKED, "it holds no checksum")
        whole = is_whole(path)
    except InputError as error:
        return Checked(name, DAMAGED, str(error).removesuffix(".").replace(f"'{path}'", "it"))
    if whole is None:
        return Checked(name, UNCHECKED, "it holds no checksum")
    return Checked(name, WHOLE) if whole else Checked(name, DAMAGED, "it has changed")


def _others(run: Path, facts: Mapping[str, Any], done: set[str]) -> Iterator[Checked]:
    """The files that a manifest does not name."""
    lists_trajectory = any(name.startswith(store.TRAJECTORY) for name in done)
    for path in sorted(path for path in run.rglob("*") if not path.is_dir()):
        name = path.relative_to(run).as_posix()
        top = name.partition("/")[0]
        if name in done:
            continue
        if any(part.startswith(".") for part in PurePosixPath(name).parts):
            yield Checked(name, OTHER, "hidden, as what a write that was cut short leaves")
        elif name == store.AUDIT:
            yield _audit(run, facts)
        elif top == store.TRAJECTORY and lists_trajectory:
            yield Checked(name, FOREIGN, "the run was saved without it")
        elif top in (store.TRAJECTORY, store.PARTS, store.EXACT) or name in store.FILES:
            yield _by_itself(path, name)
        else:
            yield Checked(name, OTHER)


def _audit(run: Path, facts: Mapping[str, Any]) -> Checked:
    try:
        values = read_table(run / store.AUDIT)
        Audit.from_dict(values)
    except InputError as error:
        return Checked(store.AUDIT, DAMAGED, str(error).removesuffix("."))
    if is_sealed(values) is False:
        return Checked(store.AUDIT, DAMAGED, "it has changed")
    if facts.get("complete") and values.get("of") != facts["files"].get(store.SYNSET):
        return Checked(store.AUDIT, FOREIGN, "it is of another synset")
    return Checked(store.AUDIT, UNCHECKED if is_sealed(values) is None else WHOLE)


def _together(run: Path, facts: Mapping[str, Any]) -> Checked:
    """Whether the pieces are of one training, and the run loads."""
    try:
        store.check_loads(run, facts)
    except InputError as error:
        return Checked(TOGETHER, FOREIGN, str(error).removesuffix("."))
    return Checked(TOGETHER, WHOLE)


def _data(facts: Mapping[str, Any], train: Samples | str | None) -> Checked:
    """Whether the training set is the one that a run was made with."""
    if train is None or isinstance(train, str):
        return Checked(DATA, UNCHECKED, train or "it was not given")
    if train.fingerprint() == facts["data"]:
        return Checked(DATA, WHOLE)
    return Checked(DATA, FOREIGN, train.unlike(facts.get("described")))
