"""Response matching: the displacements of a block of groups, which are kept, and encoded in a shared bank of images.

The displacement of a cluster is its response. That of a class also closes the class's output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature.damping import Damping
from ddm.data.samples import Samples
from ddm.distil.blocks import Block, class_members
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.kept import Displacements, KeptResponses, Moved, keeps_responses
from ddm.distil.matching import DistilledBlock
from ddm.distil.response.estimate import estimate_response
from ddm.distil.response.shared_bank import MAX_BLOCK_GROUPS, SharedBank, bytes_per_group
from ddm.distil.response.solve import Responses
from ddm.distil.response.whole_class import PASSES, ClassOutputs
from ddm.distil.settings import Settings
from ddm.groups.partition import Partition
from ddm.training.target import Target

_ROW, _FORWARD = 2.0, 1.0
"""Work of a curvature row, and of a forward pass along a response, in units of a backward pass of one sample."""

_GAIN, _MISSED = "gain at ", "missed at "
"""Stored before each multiple of the damping that was tried."""

NO_ROWS = np.array([], dtype=np.int64)
"""The samples whose curvature is left out for a class whose output is closed: none."""

_PROBES = 16
"""Number of groups whose pulls choose the damping."""


class ResponseMatching:
    """Response matching of blocks of groups.

    bank: encodes the displacements in synsets; None if the settings leave these out
    """

    max_block_groups: int | None = MAX_BLOCK_GROUPS

    def __init__(self, target: Target, samples: Samples, settings: Settings, engine: Engine = None) -> None:
        self.target, self.samples, self.settings = target, samples, settings
        self.responses = Responses(target, samples, settings, engine=engine)
        self.bank = SharedBank(target, samples, settings) if settings.synset else None
        self.class_outputs = ClassOutputs(target, samples, self.responses.weights.damping(target))
        self.damping: Damping | None = None
        self._damped = False
        self.bytes_per_group = bytes_per_group(target)

    @property
    def shared_cost(self) -> float:
        """Work of the curvature and of the image bank."""
        encoding = self.bank.encoder.rows if self.bank is not None else 0
        return _ROW * (self.responses.curvature.cost.rows + encoding)

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in backward passes of samples."""
        pulled = _members(partition, block.clusters)
        if upper is not None and not block.clusters:
            pulled = _members(upper, block.classes)
        real = sum(len(self.responses.used_rows(rows)) for rows in pulled)
        closing = PASSES * len(block.classes) if self._closes else 0
        return float(real * len(self.responses.checkpoints) + _FORWARD * closing)

    def estimate(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[Block], engine: Engine
    ) -> MatchingEstimate:
        """Estimate the time, memory and disk space of response matching for these blocks from short trials."""
        return estimate_response(self, partition, upper, blocks, engine)

    def resume(self, blocks: Sequence[DistilledBlock]) -> None:
        """Reuse the damping and the images of blocks that an earlier run finished."""
        for block in blocks:
            self.damping = _damping_of(block)
            for _, synset in block.synsets:
                if self.bank is not None:
                    self.bank.reuse(synset)

    def distil_blocks(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, DistilledBlock]]:
        """The results of numbered blocks, one after another, because they share the images and the curvature."""
        if upper is not None and blocks and not self._closes:
            warnings.warn(
                "the network has no bias for each output, so models without a whole class may still predict it: add a "
                "bias to its last layer, or retrain to be sure.",
                stacklevel=5,
            )
        for number, block in blocks:
            yield number, self.distil_block(partition, upper, block, advance)

    def distil_block(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance
    ) -> DistilledBlock:
        """The kept responses of a block, if they are kept, and its synsets, unless the settings leave them out.

        A synset encodes the responses as they are kept, so that ``distil_kept`` makes the same one later.
        """
        levels, kept = self._displacements(partition, upper, block, advance), None
        damping = _damping_facts(self.damping)
        if keeps_responses(self.settings, len(partition) + len(upper or ()), self.target.flat.size):
            clusters, classes = map(Displacements.of, levels)
            kept = KeptResponses(clusters, classes, damping)
            levels = kept.clusters.moved(), kept.classes.moved()
        if self.bank is None:
            return DistilledBlock([], kept)
        return DistilledBlock(self.bank.synsets(*levels, damping, lambda done: advance(_ROW * done)), kept)

    def _displacements(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance
    ) -> tuple[Moved, Moved]:
        """Displacements of a block's clusters and of its classes, whose outputs are closed."""
        (rows, own), clusters = self._solve(partition, upper, block, advance), len(block.clusters)
        closed = self._close_classes(upper, block, rows[clusters:], advance)
        return (
            Moved(_names(partition, block.clusters), rows[:clusters], own[:clusters]),
            Moved(_names(upper, block.classes), closed, own[clusters:]),
        )

    @property
    def _closes(self) -> bool:
        """True if the displacement of a class closes its output."""
        return self.class_outputs.biases is not None

    def _close_classes(self, upper: Partition | None, block: Block, responses: Tensor, advance: Advance) -> Tensor:
        """Displacements ``(B, P)`` of a block's classes with responses ``(B, P)``."""
        labels = np.asarray(_some(upper).parents)[block.classes].tolist() if block.classes else []
        return self.class_outputs.close(responses, labels, lambda amount: advance(_FORWARD * amount))

    def responses_of(
        self,
        partition: Partition,
        upper: Partition | None,
        block: Block,
        advance: Advance = lambda amount: None,
    ) -> Tensor:
        """Δ ``(B, P)`` of a block's clusters and then of its classes, before the classes' outputs are closed."""
        return self._solve(partition, upper, block, advance)[0]

    def _solve(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance
    ) -> tuple[Tensor, Tensor]:
        """Δ ``(B, P)`` of a block's clusters and then of its classes, and their own shares of the curvature ``(B,)``.

        The response of a class whose output will be closed keeps the class's own curvature, and its own share counts as
        0. That curvature is mostly the one of the output that is closed.
        """
        clusters = len(block.clusters)
        members = _members(partition, block.clusters) if clusters else _members(_some(upper), block.classes)
        pulls = self.responses.pulls(members, advance)
        self.responses.curvature.prepare(lambda rows: advance(_ROW * rows))
        self._choose_damping(partition, block, pulls)
        if clusters and block.classes:
            inside = torch.as_tensor(class_members(partition, block)).to(pulls)
            pulls, members = torch.cat([pulls, inside @ pulls]), members + _members(_some(upper), block.classes)
        if self._closes:
            members = members[:clusters] + [NO_ROWS] * len(block.classes)
        return self.responses.without_own(pulls, members)

    def _choose_damping(self, partition: Partition, block: Block, pulls: Tensor) -> None:
        """Choose the damping once, by a few groups of the partition; ``pulls (B, P)`` are those of this block."""
        if self.damping is not None:
            if not self._damped:
                self.responses.set_damping(self.damping.scale)
                self._damped = True
            return
        probes = np.unique(np.linspace(0, len(partition) - 1, _PROBES).round().astype(int)).tolist()
        if set(probes) <= set(block.clusters):
            pulls = pulls[[block.clusters.index(probe) for probe in probes]]
        else:
            pulls = self.responses.pulls(_members(partition, probes))
        self.damping, self._damped = self.responses.choose_damping(pulls), True


def _damping_facts(damping: Damping | None) -> dict[str, float]:
    """The chosen damping and the trials that led to it, as a synset stores them."""
    assert damping is not None
    gains = {f"{_GAIN}{scale:g}": gain for scale, gain in damping.gains.items()}
    return {"scale": damping.scale, **gains, **{f"{_MISSED}{scale:g}": part for scale, part in damping.missed.items()}}


def _damping_of(block: DistilledBlock) -> Damping:
    """The damping that a finished block was solved with."""
    facts = block.responses.damping if block.responses is not None else block.synsets[0][1].damping
    return Damping(facts.get("scale", 1.0), _tried(facts, _GAIN), _tried(facts, _MISSED))


def _tried(facts: Mapping[str, float], prefix: str) -> dict[float, float]:
    return {float(name.removeprefix(prefix)): value for name, value in facts.items() if name.startswith(prefix)}


def _names(partition: Partition | None, groups: Sequence[int]) -> tuple[str, ...]:
    return tuple(_some(partition).names[group] for group in groups)


def _members(partition: Partition, groups: Sequence[int]) -> list[np.ndarray]:
    return [partition.rows(group) for group in groups]


def _some(partition: Partition | None) -> Partition:
    assert partition is not None
    return partition
