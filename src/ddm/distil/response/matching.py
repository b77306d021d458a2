"""Response matching: the displacements of a block of groups, then their encoding in a shared bank of images.

The displacement of a cluster is its response. That of a class also closes the class's output.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature.damping import Damping
from ddm.data.samples import Samples
from ddm.distil.blocks import Block, class_members
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.matching import LevelSynset
from ddm.distil.response.encode import Encoder, Encoding
from ddm.distil.response.estimate import estimate_response
from ddm.distil.response.solve import Responses
from ddm.distil.response.whole_class import PASSES, ClassOutputs
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.groups.partition import Partition
from ddm.training.target import Target

_COPIES = 6
"""Vectors (P,) held for each group."""

_ROW, _FORWARD = 2.0, 1.0
"""Work of a curvature row, and of a forward pass along a response, in units of a backward pass of one sample."""

_PROBES = 16
"""Number of groups whose pulls choose the damping."""


class ResponseMatching:
    """Response matching of blocks of groups. The first block chooses the images that all blocks share."""

    max_block_groups: int | None = 256
    """A killed fit loses the work of at most this many groups."""

    def __init__(self, target: Target, samples: Samples, settings: Settings, engine: Engine = None) -> None:
        self.target, self.samples, self.settings = target, samples, settings
        self.responses = Responses(target, samples, settings, engine=engine)
        self.encoder = Encoder(target, samples, settings)
        self.class_outputs = ClassOutputs(target, samples, self.responses.weights.damping(target))
        self.images: Tensor | None = None
        self.damping: Damping | None = None
        self.bytes_per_group = _COPIES * target.flat.size * target.theta.element_size()

    @property
    def shared_cost(self) -> float:
        """Work of the curvature and of the image bank."""
        return _ROW * (self.responses.curvature.cost.rows + self.encoder.rows)

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in backward passes of samples."""
        pulled = _members(partition, block.clusters)
        if upper is not None and not block.clusters:
            pulled = _members(upper, block.classes)
        real = sum(len(self.responses.used_rows(rows)) for rows in pulled)
        classes = [] if upper is None else _members(upper, block.classes)
        own = sum(map(self.responses.own_passes, _members(partition, block.clusters)))
        own += PASSES * len(classes) if self._closes else sum(map(self.responses.own_passes, classes))
        return float(real * len(self.responses.checkpoints) + _FORWARD * own)

    def estimate(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[Block], engine: Engine
    ) -> MatchingEstimate:
        """Estimate the time, memory and disk space of response matching for these blocks from short trials."""
        return estimate_response(self, partition, upper, blocks, engine)

    def resume(self, parts: Sequence[LevelSynset]) -> None:
        """Reuse the images of blocks that an earlier run finished."""
        for _, synset in parts:
            self.images = synset.images[0].to(self.target.theta)

    def distil_blocks(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, list[LevelSynset]]]:
        """The synsets of numbered blocks, one after another, because they share the images and the curvature."""
        if upper is not None and blocks and not self._closes:
            warnings.warn(
                "the network has no bias for each output, so models without a whole class may still predict it: add a "
                "bias to its last layer, or retrain to be sure.",
                stacklevel=5,
            )
        for number, block in blocks:
            yield number, list(self.synsets(partition, upper, block, advance))

    def synsets(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance
    ) -> Iterator[LevelSynset]:
        """The synsets of a block's clusters, then of its classes."""
        (responses, own), clusters = self._solve(partition, upper, block, advance), len(block.clusters)
        closed = self._close_classes(upper, block, responses[clusters:], advance)
        encoding = self._encode(responses, closed, lambda rows: advance(_ROW * rows))
        if clusters:
            names = [partition.names[group] for group in block.clusters]
            yield "cluster", self._synset(names, encoding, slice(None, clusters), own[:clusters])
        if block.classes and upper is not None:
            names = [upper.names[group] for group in block.classes]
            yield "class", self._synset(names, encoding, slice(len(responses), None), own[clusters:])

    @property
    def _closes(self) -> bool:
        """True if the displacement of a class closes its output."""
        return self.class_outputs.biases is not None

    def _close_classes(self, upper: Partition | None, block: Block, responses: Tensor, advance: Advance) -> Tensor:
        """Displacements ``(B, P)`` of a block's classes with responses ``(B, P)``."""
        labels = np.asarray(_some(upper).parents)[block.classes].tolist() if block.classes else []
        return self.class_outputs.close(responses, labels, lambda amount: advance(_FORWARD * amount))

    def _encode(self, responses: Tensor, closed: Tensor, advance: Advance) -> Encoding:
        """Encode responses ``(B, P)`` and then closed displacements ``(C, P)``; ``advance`` counts rows.

        The first call chooses the images by the responses: closed displacements are easy to encode.
        """
        both = torch.cat([responses, closed])
        if self.images is not None:
            return self.encoder.encode(self.images, both, advance)
        self.images, encoding = self.encoder.choose(both, advance, judged=len(responses))
        return encoding

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

        The response of a class whose output will be closed has the length a = 1, and its own share counts as 0. The
        group's own curvature, which makes a larger, is mostly that of this output.
        """
        clusters = len(block.clusters)
        members = _members(partition, block.clusters) if clusters else _members(_some(upper), block.classes)
        pulls = self.responses.pulls(members, advance)
        self.responses.curvature.prepare(lambda rows: advance(_ROW * rows))
        self._choose_damping(partition, block, pulls)
        responses = self.responses.curvature.solve(pulls)
        if clusters and block.classes:
            inside = torch.as_tensor(class_members(partition, block)).to(pulls)
            pulls, responses = torch.cat([pulls, inside @ pulls]), torch.cat([responses, inside @ responses])
            members = members + _members(_some(upper), block.classes)
        count = clusters if self._closes else len(members)
        lengths = torch.ones(len(members)).to(pulls)
        lengths[:count] = self.responses.lengths(
            responses[:count], pulls[:count], members[:count], lambda amount: advance(_FORWARD * amount)
        )
        return responses * lengths[:, None], 1 - 1 / lengths

    def _choose_damping(self, partition: Partition, block: Block, pulls: Tensor) -> None:
        """Choose the damping once, by a few groups of the partition; ``pulls (B, P)`` are those of this block."""
        if self.damping is not None:
            return
        probes = np.unique(np.linspace(0, len(partition) - 1, _PROBES).round().astype(int)).tolist()
        if set(probes) <= set(block.clusters):
            pulls = pulls[[block.clusters.index(probe) for probe in probes]]
        else:
            pulls = self.responses.pulls(_members(partition, probes))
        self.damping = self.responses.choose_damping(pulls)

    def _synset(self, names: Sequence[str], encoding: Encoding, part: slice, own: Tensor) -> Synset:
        """A synset with targets q̃ = p + B r/α. α is such that no target is further than 1 from the prediction p."""
        assert self.images is not None
        residuals = encoding.residuals[part]
        count = len(self.images)
        step_sizes = count * residuals.abs().amax((1, 2)).clamp(min=torch.finfo(residuals.dtype).tiny)
        predictions = self.target.outputs(self.images).softmax(1)
        return Synset(
            names=tuple(names),
            images=self.images[None].cpu(),
            targets=(predictions + count * residuals / step_sizes[:, None, None]).cpu(),
            step_sizes=step_sizes.cpu(),
            alignment=encoding.alignment[part].cpu(),
            own=own.cpu(),
            steps=self.settings.finetune_steps,
            shared=True,
            damping=_damping_facts(self.damping),
        )


def _damping_facts(damping: Damping | None) -> dict[str, float]:
    """The chosen damping and the gains that led to it, as a synset stores them."""
    assert damping is not None
    return {"scale": damping.scale, **{f"gain at {scale:g}": gain for scale, gain in damping.gains.items()}}


def _members(partition: Partition, groups: Sequence[int]) -> list[np.ndarray]:
    return [partition.rows(group) for group in groups]


def _some(partition: Partition | None) -> Partition:
    assert partition is not None
    return partition
