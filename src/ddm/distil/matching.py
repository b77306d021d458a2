"""What a matching does, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ddm.compute.engine import Engine, inside
from ddm.compute.progress import Advance
from ddm.distil.blocks import Block
from ddm.distil.synset import Synset
from ddm.groups.partition import Partition
from ddm.training.target import Target

_LITTLE = 2**31
"""Samples passed forward and back × parameters that are not worth starting processes for."""

Part = tuple[str, Synset]
"""The level, cluster or class, and what was distilled there."""


class Work(Protocol):
    """A matching of some target: made once, then given blocks of groups.

    bytes_per_group: what a group takes while its block is worked on
    most:            groups of a block, if fewer than fit the memory
    """

    bytes_per_group: int
    most: int | None

    @property
    def shared_cost(self) -> float:
        """Work that is done once for all blocks, in samples passed forward and back."""

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in samples passed forward and back."""

    def resume(self, parts: Sequence[Part]) -> None:
        """Take over what earlier blocks have decided."""

    def all(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, list[Part]]]:
        """The number of each block with the synsets of its clusters and then of its classes, as they are done."""


def worthwhile(where: Engine, target: Target, passes: float) -> Engine:
    """Where pieces run that pass so many samples forward and back: if nobody says, little work stays in this process,
    and so does that of a GPU or of a piece."""
    stays = passes * target.flat.size < _LITTLE or target.device.type != "cpu" or inside()
    return "serial" if where is None and stays else where
