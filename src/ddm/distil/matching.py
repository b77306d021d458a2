"""The methods of every matching: it distils blocks of groups, and estimates the cost beforehand.

A new matching is one class with this protocol and one entry in ``ddm.distil.driver.MATCHINGS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ddm.compute.engine import Engine, in_task
from ddm.compute.progress import Advance
from ddm.distil.blocks import Block
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.kept import KeptResponses
from ddm.distil.synset import Synset
from ddm.groups.partition import Partition
from ddm.training.target import Target

_SMALL_WORK = 2**31
"""Backward passes × parameters below which starting worker processes takes longer than the work."""

LevelSynset = tuple[str, Synset]
"""The level, ``cluster`` or ``class``, and the synset of its groups."""


@dataclass(frozen=True)
class DistilledBlock:
    """A finished block.

    synsets:   the synsets of its clusters and then of its classes; empty if the settings leave them out
    responses: the kept responses; None if none are kept
    """

    synsets: list[LevelSynset]
    responses: KeptResponses | None = None


class Matching(Protocol):
    """A way to distil the groups of a target: built once, then given blocks of groups.

    bytes_per_group:  memory of a group while its block is distilled
    max_block_groups: maximum groups of a block; None leaves it to the memory
    """

    bytes_per_group: int
    max_block_groups: int | None

    @property
    def shared_cost(self) -> float:
        """Work done once for all blocks, in backward passes of samples."""

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in backward passes of samples."""

    def estimate(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[Block], engine: Engine
    ) -> MatchingEstimate:
        """Estimate the time, memory and disk space for these blocks from short trials."""

    def resume(self, blocks: Sequence[DistilledBlock]) -> None:
        """Reuse choices that the finished blocks of an earlier run made for all blocks, such as shared images."""

    def distil_blocks(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, DistilledBlock]]:
        """Yield the number and the results of each block when it is finished."""


def engine_for(engine: Engine, target: Target, passes: float) -> Engine:
    """The engine for tasks that take ``passes`` backward passes of samples.

    Unless the user chose one, small work stays in this process, and so does work on a GPU or inside a worker.
    """
    stays = passes * target.flat.size < _SMALL_WORK or target.device.type != "cpu" or in_task()
    return "serial" if engine is None and stays else engine
