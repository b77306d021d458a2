"""Finished blocks on disk, so that a killed distillation resumes with the next block."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ddm.compute.files import read_json_object, write_json
from ddm.compute.tensors import check_intact
from ddm.data.samples import Samples
from ddm.distil.blocks import Block
from ddm.distil.matching import LevelSynset
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training.target import Target


class BlockStore:
    """A folder with the synsets of finished blocks. Without a folder it stores nothing."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def check_identity(self, target: Target, samples: Samples, partition: Partition, settings: Settings) -> None:
        """Refuse a folder with blocks of another distillation. Label an empty one for this distillation."""
        if self.directory is None:
            return
        groups = hashlib.sha256(repr(partition.names).encode() + partition.groups.tobytes()).hexdigest()
        identity = {
            "target": target.fingerprint(),
            "data": samples.fingerprint(),
            "partition": groups,
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

    def save(self, number: int, parts: list[LevelSynset]) -> None:
        """Write the synsets of a finished block."""
        if self.directory is not None:
            for level, synset in parts:
                synset.save(_path(self.directory, number, level))

    def load(self, number: int, block: Block) -> list[LevelSynset]:
        """The synsets of a block that an earlier run finished; empty if it did not finish the block."""
        if self.directory is None:
            return []
        levels = [
            (level, groups) for level, groups in (("cluster", block.clusters), ("class", block.classes)) if groups
        ]
        paths = [_path(self.directory, number, level) for level, _ in levels]
        if not all(path.exists() for path in paths):
            return []
        return [(level, _load(path, len(groups))) for path, (level, groups) in zip(paths, levels, strict=True)]


def _path(directory: Path, number: int, level: str) -> Path:
    return directory / f"{number:04d}-{level}.safetensors"


def _load(path: Path, groups: int) -> Synset:
    """The synset at ``path``; refuses a damaged file, and one that is not for this number of groups."""
    check_intact(path, "delete it, and the block is distilled again")
    synset = Synset.load(path)
    if len(synset) != groups:
        raise InputError(f"'{path}' belongs to other groups: delete it, and the block is distilled again.")
    return synset
