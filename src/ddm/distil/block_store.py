"""Finished blocks on disk, so that a killed distillation resumes with the next block."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ddm.compute.files import read_json_object, write_json
from ddm.compute.tensors import check_intact
from ddm.data.samples import Samples
from ddm.distil.blocks import Block
from ddm.distil.kept import KeptResponses
from ddm.distil.matching import DistilledBlock
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training.target import Target

_RESPONSES = "responses"
"""Name of the kept responses of a block, beside the names of the levels."""

_ADVICE = "delete it, and the block is distilled again"


class BlockStore:
    """A folder with the results of finished blocks. Without a folder it stores nothing.

    synsets, responses: which results a finished block has
    """

    def __init__(self, directory: Path | None, *, synsets: bool = True, responses: bool = False) -> None:
        self.directory, self.synsets, self.responses = directory, synsets, responses

    def check_identity(self, target: Target, samples: Samples, partition: Partition, settings: Settings) -> None:
        """Refuse a folder with blocks of another distillation. Label an empty one for this distillation."""
        if self.directory is None:
            return
        identity = {
            "target": " ".join([target.fingerprint(), *_displaced(target)]),
            "data": samples.fingerprint(),
            "partition": _hash_of(partition),
            "settings": settings.to_dict(),
        }
        path = self.directory / "identity.json"
        if not path.exists():
            write_json(path, identity)
        for what, value in read_json_object(path).items():
            if identity.get(what) != value:
                raise InputError(
                    f"'{self.directory}' holds blocks that were distilled with another {what}: choose another folder."
                )

    def save(self, number: int, block: DistilledBlock) -> None:
        """Write the results of a finished block."""
        if self.directory is None:
            return
        for level, synset in block.synsets:
            synset.save(_path(self.directory, number, level))
        if block.responses is not None:
            block.responses.save(_path(self.directory, number, _RESPONSES))

    def load(self, number: int, block: Block) -> DistilledBlock | None:
        """The results of a block that an earlier run finished; None if it did not finish the block."""
        if self.directory is None:
            return None
        groups = {"cluster": len(block.clusters), "class": len(block.classes)}
        levels = {level: count for level, count in groups.items() if count and self.synsets}
        paths = {name: _path(self.directory, number, name) for name in (*levels, _RESPONSES)}
        if not all(path.exists() for name, path in paths.items() if name in levels or self.responses):
            return None
        synsets = [(level, _load(paths[level], count)) for level, count in levels.items()]
        return DistilledBlock(synsets, _load_responses(paths[_RESPONSES], block) if self.responses else None)


def _displaced(target: Target) -> Sequence[str]:
    """Names of the displaced parameters, unless these are all that the training changed."""
    return () if len(target.flat.shapes) == len(target.trained) else list(target.flat.shapes)


def _hash_of(partition: Partition) -> str:
    """Identifies the names of the groups and their samples."""
    digest = hashlib.sha256(repr(partition.names).encode() + partition.groups.tobytes())
    for rows in partition.listed or ():
        digest.update(rows.tobytes() + b"/")
    return digest.hexdigest()


def _path(directory: Path, number: int, level: str) -> Path:
    return directory / f"{number:04d}-{level}.safetensors"


def _load(path: Path, groups: int) -> Synset:
    """The synset at ``path``; refuses a damaged file, and one that is not for this number of groups."""
    check_intact(path, _ADVICE)
    synset = Synset.load(path)
    if len(synset) != groups:
        raise InputError(f"'{path}' belongs to other groups: {_ADVICE}.")
    return synset


def _load_responses(path: Path, block: Block) -> KeptResponses:
    """The kept responses at ``path``; refuses a damaged file, and one of other numbers of groups and classes."""
    check_intact(path, _ADVICE)
    kept = KeptResponses.load(path)
    if (len(kept.clusters), len(kept.classes)) != (len(block.clusters), len(block.classes)):
        raise InputError(f"'{path}' belongs to other groups: {_ADVICE}.")
    return kept
