"""Reverse and forward matching of a block of groups: gradients once, matching, then calibrated lengths."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.compute import engine
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature.clipping import clipped_gradients
from ddm.curvature.damping import mean_damping
from ddm.curvature.gradients import group_gradients
from ddm.data.samples import Samples
from ddm.distil.blocks import Block, class_members
from ddm.distil.checkpoints import Pair, draw, real_checkpoints
from ddm.distil.gradient import match as gradient
from ddm.distil.gradient.calibration import CHECKPOINTS, calibrated, looks
from ddm.distil.gradient.match import Distilled, synset_gradients
from ddm.distil.gradient.start import start
from ddm.distil.matching import Part, engine_for
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training import augmentation
from ddm.training.target import Target

MatchFunction = Callable[
    [Target, Mapping[int, Tensor], Sequence[Pair], Distilled, Sequence[str], Settings, Advance],
    Distilled,
]
"""Real gradients by checkpoint, pairs to compare and a starting point → what was distilled."""

MATCHINGS: dict[str, MatchFunction] = {
    "reverse": partial(gradient.match, sign=-1.0),
    "forward": partial(gradient.match, sign=1.0),
}

_COPIES = 8
"""Vectors (P,) that matching and calibration hold for a group, beside its gradients."""

_MOST = 12
"""Groups of a block, which is a piece of work by itself: a class of ten clusters fits."""

SYNTHETIC, _FORWARD = 4.0, 0.3
"""Work of matching one synthetic sample once, and of one forward pass, in passes forward and back of a real sample."""


class GradientMatching:
    """Reverse or forward matching of blocks of groups."""

    shared_cost = 0.0
    max_block_groups: int | None = _MOST

    def __init__(self, target: Target, samples: Samples, settings: Settings, engine: Engine = None) -> None:
        self.target, self.samples, self.settings, self.engine = target, samples, settings, engine
        _check(target, samples, settings)
        tau = len(target.trajectory) - 1
        self.pairs = draw(settings, tau)
        self.checkpoints = real_checkpoints(settings, tau)
        vectors = len(self.checkpoints) + _COPIES
        self.bytes_per_group = vectors * target.flat.size * target.theta.element_size()
        self.damping = mean_damping(target, samples) if settings.step_size is None else 0.0

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in samples passed forward and back."""
        groups = block.size
        real = partition.sizes[block.clusters].sum()
        if upper is not None and not block.clusters:
            real = upper.sizes[block.classes].sum()
        synthetic = SYNTHETIC * self.synthetic(block)
        forward = looks(self.target) * CHECKPOINTS * groups if self.settings.step_size is None else 0
        return float(real * len(self.checkpoints) + synthetic + _FORWARD * forward)

    def synthetic(self, block: Block) -> int:
        """Synthetic samples that are matched for a block, each as often as it is."""
        return self.settings.steps * self.settings.ipc * block.size

    def resume(self, parts: Sequence[Part]) -> None:
        """Nothing of the blocks that are done is needed for the others."""

    def distil_blocks(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, list[Part]]]:
        """The synsets of numbered blocks, wherever the engine has them made."""
        costs = {number: self.cost(partition, upper, block) for number, block in blocks}
        where = engine_for(self.engine, self.target, sum(costs.values()))
        work = copy.copy(self)
        work.target = self.target.for_workers(range(len(self.target.trajectory)), Backend.parse(where))
        workers = self.workers([block for _, block in blocks])
        for number, parts in engine.run_tasks(
            _Blocks(work, partition, upper), blocks, engine=where, workers=workers, description=None
        ):
            advance(costs[number])
            yield number, parts

    def workers(self, blocks: Sequence[Block]) -> int:
        """Processes of this machine, one a core, whose blocks fit the memory together."""
        largest = self.bytes_per_group * max((block.size for block in blocks), default=1)
        return max(1, min(engine.count_cores(), int(self.settings.memory * 2**30 / largest)))

    def synsets(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance = lambda amount: None
    ) -> Iterator[Part]:
        """The synsets of a block's clusters, then of its classes."""
        gradients = self.gradients(partition, block.clusters, advance)
        if block.clusters:
            yield "cluster", self.synset(partition, block.clusters, gradients, advance)
        if block.classes and upper is not None:
            if block.clusters:
                gradients = _class_gradients(partition, block, gradients)
            else:
                gradients = self.gradients(upper, block.classes, advance)
            yield "class", self.synset(upper, block.classes, gradients, advance)

    def gradients(self, partition: Partition, groups: list[int], advance: Advance) -> Tensor:
        """∇L(θ_t; D_κ) ``(B, T, P)`` of some groups at every checkpoint that is compared."""
        members = [partition.rows(group) for group in groups]
        if self.settings.clip is None:
            return group_gradients(self.target, self.samples, members, self.checkpoints, advance)
        clip, seed = self.settings.clip, self.settings.seed
        return clipped_gradients(self.target, self.samples, members, self.checkpoints, clip, seed, advance)

    def synset(self, partition: Partition, groups: list[int], gradients: Tensor, advance: Advance) -> Synset:
        """The synset of some groups of a partition, from their gradients ``(B, T, P)``."""
        names = [partition.names[group] for group in groups]
        members = [partition.rows(group) for group in groups]
        starts = [start(self.target, self.samples, *pair, self.settings) for pair in zip(members, names, strict=True)]
        initial = Distilled(torch.stack([x for x, _ in starts]), torch.stack([q for _, q in starts]))
        wanted = {t: gradients[:, column] for column, t in enumerate(self.checkpoints)}
        matching = MATCHINGS[self.settings.matching]
        found = matching(
            self.target, wanted, self.pairs, initial, names, self.settings, lambda amount: advance(SYNTHETIC * amount)
        )
        weights = torch.as_tensor(odds(partition)[groups]).to(gradients)
        return self._finished(found, names, gradients.mean(1) * weights[:, None], advance)

    def _finished(self, found: Distilled, names: list[str], wanted: Tensor, advance: Advance) -> Synset:
        """Step lengths and alignment for what was distilled, given ḡ ``(B, P)``."""
        settings, target = self.settings, self.target
        hard = settings.labels == "hard"
        wanted = wanted.to(target.device)
        pulls = synset_gradients(target, target.theta, target.fixed, found.images, found.targets, hard=hard).detach()
        if settings.step_size is None:
            lengths = calibrated(
                target, self.samples, -pulls, wanted, self.damping, lambda amount: advance(_FORWARD * amount)
            )
        else:
            sign = 1 if settings.matching == "reverse" else -1
            lengths = torch.full((len(names),), sign * settings.step_size * settings.finetune_steps)
        stopped = {names[row]: why for row, why in found.stopped.items()}
        found.images[list(found.stopped)] = 0  # not the training images that they started from
        lengths = lengths.cpu() * torch.tensor([name not in stopped for name in names])
        steps = -pulls * lengths.to(pulls)[:, None]
        return Synset(
            names=tuple(names),
            images=found.images.cpu(),
            targets=found.targets.cpu(),
            lengths=lengths,
            alignment=F.cosine_similarity(steps, wanted, dim=1).cpu(),
            steps=settings.finetune_steps,
            hard=hard,
            stopped=stopped,
        )


@dataclass(frozen=True)
class _Blocks:
    """Makes the synsets of a numbered block."""

    work: GradientMatching
    partition: Partition
    upper: Partition | None

    def __call__(self, numbered: tuple[int, Block]) -> tuple[int, list[Part]]:
        number, block = numbered
        work = copy.copy(self.work)
        work.target = _near(self.work.target)
        return number, list(work.synsets(self.partition, self.upper, block))


def _near(target: Target) -> Target:
    """The target with θ_τ on the GPU of this piece, where ``cuda`` without a number is another for each."""
    near = copy.copy(target)
    near.theta, near.fixed = target.at(-1)
    return near


def _check(target: Target, samples: Samples, settings: Settings) -> None:
    """Refuse augmentation of what is not an image, and soft targets for a loss that does not take them."""
    augmentation.check_shape(settings.augment, samples.shape)
    outputs = target.outputs(samples.batch([0])[0])
    if settings.labels == "soft":
        try:
            target.loss(outputs, outputs.softmax(1))
        except Exception as error:  # whatever a loss of the user's own may raise
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"the loss takes no soft targets: use labels='hard' ({why}).") from None


def odds(partition: Partition) -> np.ndarray:
    """n_κ / (n − n_κ) ``(K,)``: what a group weighs against the mean loss of the others."""
    sizes = partition.sizes
    weights: np.ndarray = sizes / np.maximum(len(partition.groups) - sizes, 1)
    return weights


def _class_gradients(partition: Partition, block: Block, clusters: Tensor) -> Tensor:
    """Gradients of a block's classes ``(classes, T, P)`` as means of those of their clusters ``(B, T, P)``."""
    weights = np.where(class_members(partition, block), partition.sizes[block.clusters], 0)
    shares = torch.as_tensor(weights / weights.sum(1, keepdims=True)).to(clusters)
    return torch.einsum("lc,ctp->ltp", shares, clusters)
