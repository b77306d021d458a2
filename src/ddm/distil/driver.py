"""From a target and a partition to synsets, in blocks of groups that fit the memory.

A block holds whole classes where they fit: the gradient of a class is then the mean of its clusters'. Each block is
saved when it is done, so that a killed run goes on with the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ddm.compute.engine import Engine
from ddm.compute.files import read_json_object, write_json
from ddm.compute.progress import bar
from ddm.compute.tensors import check_intact
from ddm.data.samples import Samples, check_two_classes
from ddm.distil.blocks import Block, plan
from ddm.distil.gradient.matching import GradientMatching
from ddm.distil.matching import Matching, Part
from ddm.distil.response.matching import ResponseMatching
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training.target import Target

_NOTHING = 1e-6
"""An alignment that is none."""

_FEW = 16
"""Samples of a group below which single ones are recognised or rebuilt (``ddm bench privacy``)."""


def distil(
    target: Target,
    samples: Samples,
    partition: Partition,
    settings: Settings | None = None,
    directory: Path | None = None,
    engine: Engine = None,
) -> tuple[Synset, Synset | None]:
    """The synset of every group, and that of every class where groups lie within classes.

    engine: where the pulls of response matching, or the blocks of the others, are computed
    """
    settings = settings or Settings()
    check_two_classes(samples)
    upper = partition.by_class()
    if upper is not None and len(upper) == len(partition):
        synset, _ = distil(target, samples, replace(partition, parents=None), settings, directory, engine)
        return synset, _as_classes(synset, partition, upper)
    if settings.clip is not None:
        _warn_of_few(partition)
    if directory is not None:
        _claim(directory, target, samples, partition, settings)
    work = make_matching(target, samples, settings, engine)
    blocks = plan(partition, work.bytes_per_group, settings.memory, work.max_block_groups)
    done = [_kept(directory, number, block) for number, block in enumerate(blocks)]
    work.resume([part for parts in done for part in parts])
    left = [block for block, parts in zip(blocks, done, strict=True) if not parts]
    todo = sum(work.cost(partition, upper, block) for block in left) + (work.shared_cost if left else 0.0)
    with bar(f"{settings.matching} matching", todo) as advance:
        numbered = [(number, blocks[number]) for number, parts in enumerate(done) if not parts]
        with _solvable():
            for number, parts in work.distil_blocks(partition, upper, numbered, advance):
                done[number] = parts
                _keep(directory, number, parts)
    every = [part for parts in done for part in parts]
    clusters = Synset.join([synset for level, synset in every if level == "cluster"], partition.names)
    _warn(clusters, "groups", settings)
    origin = target.origin(samples.fingerprint())
    if upper is None:
        return replace(clusters, origin=origin), None
    classes = Synset.join([synset for level, synset in every if level == "class"], upper.names)
    _warn(classes, "classes", settings)
    return replace(clusters, origin=origin), replace(classes, origin=origin)


def make_matching(target: Target, samples: Samples, settings: Settings, engine: Engine = None) -> Matching:
    """The matching that the settings name."""
    if settings.matching == "response":
        return ResponseMatching(target, samples, settings, engine)
    return GradientMatching(target, samples, settings, engine)


def _claim(directory: Path, target: Target, samples: Samples, partition: Partition, settings: Settings) -> None:
    """Refuse a directory with parts of another distillation; say of an empty one what it is for."""
    groups = hashlib.sha256(repr(partition.names).encode() + partition.groups.tobytes()).hexdigest()
    identity = {
        "target": target.fingerprint(),
        "data": samples.fingerprint(),
        "partition": groups,
        "settings": settings.to_dict(),
    }
    path = directory / "identity.json"
    if not path.exists():
        write_json(path, identity)
    for what, value in read_json_object(path).items():
        if identity.get(what) != value:
            raise InputError(f"'{directory}' holds parts of a matching with another {what}: choose another folder.")


@contextlib.contextmanager
def _solvable() -> Iterator[None]:
    try:
        yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise InputError(
            "the predictions of the target do not change with its parameters, so that nothing can be distilled: "
            "train it from other weights or with another lr."
        ) from None


def _warn(synset: Synset, what: str, settings: Settings) -> None:
    """Say what went wrong, once for all groups; refuse a synset that is of no use at all."""
    if synset.stopped:
        first = next(iter(synset.stopped.values()))
        if len(synset.stopped) == len(synset):
            raise InputError(f"none of the {len(synset)} {what} could be distilled: {first}")
        warnings.warn(f"{len(synset.stopped)} of {len(synset)} {what} could not be distilled: {first}", stacklevel=3)
    if bool((synset.alignment.abs() < _NOTHING).all()):
        warnings.warn(
            f"the synsets of the {what} say nothing: no gradient was left to match, as of a target that did not learn.",
            stacklevel=3,
        )
    wrong = int((synset.lengths < 0).sum())
    if wrong and settings.matching == "reverse":
        warnings.warn(
            f"the synsets of {wrong} of {len(synset)} {what} point the wrong way and are climbed instead of "
            f"descended: soft labels or more steps help.",
            stacklevel=3,
        )


def _warn_of_few(partition: Partition) -> None:
    """Say that clipping does not hide the samples of small groups."""
    few = int((partition.sizes < _FEW).sum())
    if few:
        warnings.warn(
            f"{few} of {len(partition)} groups have fewer than {_FEW} samples, which a synset gives away, private or "
            "not: use fewer clusters.",
            stacklevel=3,
        )


def _as_classes(synset: Synset, partition: Partition, upper: Partition) -> Synset:
    """The synset of groups that are whole classes, by the classes' names and in their order."""
    order = [synset.names[k] for k in np.argsort(np.asarray(partition.parents))]
    names = dict(zip(order, upper.names, strict=True))
    stopped = {names[name]: why for name, why in synset.stopped.items()}
    return replace(Synset.join([synset], order), names=upper.names, stopped=stopped)


def _path(directory: Path, number: int, level: str) -> Path:
    return directory / f"{number:04d}-{level}.safetensors"


def _keep(directory: Path | None, number: int, parts: list[Part]) -> None:
    if directory is not None:
        for level, synset in parts:
            synset.save(_path(directory, number, level))


def _kept(directory: Path | None, number: int, block: Block) -> list[Part]:
    """What an earlier run left of a block: all of it, or nothing."""
    levels = [level for level, groups in (("cluster", block.clusters), ("class", block.classes)) if groups]
    if directory is None or not all(_path(directory, number, level).exists() for level in levels):
        return []
    for level in levels:
        check_intact(_path(directory, number, level), "delete it, and it is made again")
    parts = {level: Synset.load(_path(directory, number, level)) for level in levels}
    for level, groups in (("cluster", block.clusters), ("class", block.classes)):
        if groups and len(parts[level]) != len(groups):
            raise InputError(
                f"'{_path(directory, number, level)}' is of other groups: delete it, and it is made again."
            )
    return list(parts.items())
