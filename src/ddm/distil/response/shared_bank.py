"""Synsets of responses: blocks of displacements, encoded one after another in one bank of images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.distil.kept import Moved
from ddm.distil.matching import LevelSynset
from ddm.distil.response.encode import Encoder, Encoding
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.training.target import Target

COPIES = 6
"""Vectors (P,) held for each group of a block."""

MAX_BLOCK_GROUPS = 256
"""A killed fit loses the work of at most this many groups."""


def bytes_per_group(target: Target) -> int:
    """Memory of a group while its block is distilled."""
    return COPIES * target.flat.size * target.theta.element_size()


class SharedBank:
    """The images that the synsets of all blocks share. The first block chooses them."""

    def __init__(self, target: Target, samples: Samples, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.encoder = Encoder(target, samples, settings)
        self.images: X | None = None

    def reuse(self, synset: Synset) -> None:
        """Take the images of a synset that an earlier run finished."""
        self.images = synset.images[0].to(self.target.theta)

    def synsets(
        self,
        clusters: Moved,
        classes: Moved,
        damping: Mapping[str, float],
        advance: Advance = lambda amount: None,
    ) -> list[LevelSynset]:
        """The synsets of a block's clusters and then of its classes; levels without groups are left out.

        damping: how the damping was chosen
        advance: counts rows of matrices
        """
        encoding = self._encode(clusters.rows.to(self.target.theta), classes.rows.to(self.target.theta), advance)
        count = len(clusters.names)
        levels = ("cluster", clusters, slice(None, count)), ("class", classes, slice(count, None))
        return [(name, self._synset(level, encoding, part, damping)) for name, level, part in levels if level.names]

    def _encode(self, clusters: Tensor, classes: Tensor, advance: Advance) -> Encoding:
        """Encode the displacements of clusters ``(B, P)`` and then of classes ``(C, P)``.

        The first call chooses the images by the clusters: the closed outputs of classes are easy to encode.
        """
        both = torch.cat([clusters, classes])
        if self.images is not None:
            return self.encoder.encode(self.images, both, advance)
        self.images, encoding = self.encoder.choose(both, advance, judged=len(clusters) or None)
        return encoding

    def _synset(self, level: Moved, encoding: Encoding, part: slice, damping: Mapping[str, float]) -> Synset:
        """A synset with targets q̃ = p + B r/α. α is such that no target is further than 1 from the prediction p."""
        assert self.images is not None
        residuals = encoding.residuals[part]
        count = len(self.images)
        step_sizes = count * residuals.abs().amax((1, 2)).clamp(min=torch.finfo(residuals.dtype).tiny)
        predictions = self.target.task.mean(self.target.outputs(self.images))
        return Synset(
            names=level.names,
            images=self.images[None].cpu(),
            targets=(predictions + count * residuals / step_sizes[:, None, None]).cpu(),
            step_sizes=step_sizes.cpu(),
            alignment=encoding.alignment[part].cpu(),
            own=level.own.cpu(),
            steps=self.settings.finetune_steps,
            shared=True,
            damping=dict(damping),
        )
