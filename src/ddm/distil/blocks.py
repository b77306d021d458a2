"""Blocks: which groups are distilled together, so that their gradients fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddm.groups.partition import Partition


@dataclass(frozen=True)
class Block:
    """Groups that are distilled together: some clusters, and the classes that consist of just these."""

    clusters: list[int]
    classes: list[int]

    @property
    def size(self) -> int:
        """Groups of both levels."""
        return len(self.clusters) + len(self.classes)

    @property
    def whole(self) -> bool:
        """Whether it holds classes with all their clusters."""
        return bool(self.clusters and self.classes)


def plan(partition: Partition, bytes_per_group: int, memory: float, most: int | None = None) -> list[Block]:
    """Blocks of at most ``most`` groups whose gradients fit ``memory`` GiB, whole classes where they do."""
    room = max(1, int(memory * 2**30 / bytes_per_group))
    room = room if most is None else min(room, most)
    if partition.parents is None:
        return [Block(list(part), []) for part in _runs(range(len(partition)), room)]
    blocks: list[Block] = []
    for index, parent in enumerate(np.unique(partition.parents)):
        members = np.flatnonzero(partition.parents == parent).tolist()
        if len(members) + 1 > room:
            blocks += [Block(part, []) for part in _runs(members, room)] + [Block([], [index])]
        elif blocks and blocks[-1].whole and blocks[-1].size + len(members) + 1 <= room:
            blocks[-1].clusters.extend(members)
            blocks[-1].classes.append(index)
        else:
            blocks.append(Block(members, [index]))
    return blocks


def class_members(partition: Partition, block: Block) -> np.ndarray:
    """Which of a block's clusters lie in which of its classes ``(classes, clusters)``."""
    parents = np.asarray(partition.parents)
    members: np.ndarray = parents[block.clusters] == np.unique(parents)[block.classes][:, None]
    return members


def _runs(items: Sequence[int], length: int) -> list[list[int]]:
    return [list(items[start : start + length]) for start in range(0, len(items), length)]
