"""What a matching does, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ddm.matching.blocks import Block
from ddm.partition import Partition
from ddm.progress import Advance
from ddm.synset import Synset

Part = tuple[str, Synset]
"""The level, cluster or class, and what was distilled there."""


class Work(Protocol):
    """A matching of some target: made once, then given blocks of groups in order.

    bytes_per_group: what a group takes while its block is worked on
    """

    bytes_per_group: int

    @property
    def shared_cost(self) -> float:
        """Work that is done once for all blocks, in samples passed forward and back."""

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in samples passed forward and back."""

    def resume(self, parts: Sequence[Part]) -> None:
        """Take over what earlier blocks have decided."""

    def synsets(self, partition: Partition, upper: Partition | None, block: Block, advance: Advance) -> Iterator[Part]:
        """The synsets of a block's clusters, then of its classes."""
