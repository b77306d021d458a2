"""Blocks: groups that are distilled together. A block is small enough for its gradients to fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddm.groups.partition import Partition


@dataclass(frozen=True)
class Block:
    """Groups that are distilled together.

    clusters: numbers of groups
    classes:  numbers of classes. A block with both holds all clusters of each of its classes.
    """

    clusters: list[int]
    classes: list[int]

    @property
    def size(self) -> int:
        """Number of groups, clusters and classes together."""
        return len(self.clusters) + len(self.classes)

    @property
    def has_complete_classes(self) -> bool:
        """True if the block holds classes together with all their clusters."""
        return bool(self.clusters and self.classes)


def plan_blocks(
    partition: Partition, bytes_per_group: int, memory: float, max_groups: int | None = None
) -> list[Block]:
    """Blocks of at most ``max_groups`` groups that fit ``memory`` GiB, with complete classes where they fit."""
    room = max(1, int(memory * 2**30 / bytes_per_group))
    room = room if max_groups is None else min(room, max_groups)
    if partition.parents is None:
        return [Block(part, []) for part in _chunks(range(len(partition)), room)]
    blocks: list[Block] = []
    for index, parent in enumerate(np.unique(partition.parents)):
        members = np.flatnonzero(partition.parents == parent).tolist()
        if len(members) + 1 > room:
            blocks += [Block(part, []) for part in _chunks(members, room)] + [Block([], [index])]
        elif blocks and blocks[-1].has_complete_classes and blocks[-1].size + len(members) + 1 <= room:
            blocks[-1].clusters.extend(members)
            blocks[-1].classes.append(index)
        else:
            blocks.append(Block(members, [index]))
    return blocks


def class_members(partition: Partition, block: Block) -> np.ndarray:
    """True where a cluster of the block lies in a class of the block: ``(classes, clusters)``."""
    parents = np.asarray(partition.parents)
    members: np.ndarray = parents[block.clusters] == np.unique(parents)[block.classes][:, None]
    return members


def _chunks(items: Sequence[int], length: int) -> list[list[int]]:
    return [list(items[start : start + length]) for start in range(0, len(items), length)]
