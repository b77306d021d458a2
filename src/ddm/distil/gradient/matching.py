"""Reverse and forward matching of blocks of groups.

Each block is distilled in three steps: compute the real gradients of its groups, run Algorithm 1
(``ddm.distil.gradient.algorithm``), and compute the step sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.compute import engine
from ddm.compute.backends import Backend
from ddm.compute.engine import Engine
from ddm.compute.progress import Advance
from ddm.curvature.clipping import clipped_gradients
from ddm.curvature.gradients import group_gradients
from ddm.curvature.step_weights import mean_damping
from ddm.data.samples import Samples
from ddm.distil.blocks import Block, class_members
from ddm.distil.checkpoints import draw_pairs, real_checkpoints
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.gradient.algorithm import SyntheticSamples, match_gradients
from ddm.distil.gradient.calibration import calibrate_step_sizes, calibration_passes
from ddm.distil.gradient.estimate import estimate_gradient
from ddm.distil.gradient.start import initial_samples
from ddm.distil.matching import DistilledBlock, LevelSynset, engine_for
from ddm.distil.settings import Settings
from ddm.distil.synset import Synset
from ddm.distil.synset_gradients import synset_gradients
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training import augmentation
from ddm.training.statistics import with_estimated_statistics
from ddm.training.target import Target

_COPIES = 8
"""Vectors (P,) that matching and calibration hold for each group, beside its gradients."""

_MAX_BLOCK_GROUPS = 12
"""Maximum groups of a block, which is one task. A class with its ten clusters fits."""

_FORWARD = 0.3
"""Work of a forward pass of one sample, in units of a backward pass."""


class GradientMatching:
    """Reverse or forward matching of blocks of groups.

    synthetic_cost: work of a distillation step for one synthetic sample, in backward passes of a real sample
    """

    shared_cost = 0.0
    synthetic_cost = 4.0
    max_block_groups: int | None = _MAX_BLOCK_GROUPS

    def __init__(self, target: Target, samples: Samples, settings: Settings, engine: Engine = None) -> None:
        target.trajectory.check_complete()
        _check(target, samples, settings)
        tau = len(target.trajectory) - 1
        target = with_estimated_statistics(target, samples, range(tau))
        self.target, self.samples, self.settings, self.engine = target, samples, settings, engine
        self.pairs = draw_pairs(settings, tau)
        self.checkpoints = real_checkpoints(settings, tau)
        vectors = len(self.checkpoints) + _COPIES
        self.bytes_per_group = vectors * target.flat.size * target.theta.element_size()
        self.damping = mean_damping(target, samples) if settings.step_size is None else 0.0

    def cost(self, partition: Partition, upper: Partition | None, block: Block) -> float:
        """Work of a block, in backward passes of samples."""
        real = partition.sizes[block.clusters].sum()
        if upper is not None and not block.clusters:
            real = upper.sizes[block.classes].sum()
        synthetic = self.synthetic_cost * self.synthetic_passes(block)
        forward = block.size * calibration_passes(self.target) if self.settings.step_size is None else 0
        return float(real * len(self.checkpoints) + synthetic + _FORWARD * forward)

    def synthetic_passes(self, block: Block) -> int:
        """Number of synthetic samples of a block, times the number of distillation steps."""
        return self.settings.steps * self.settings.ipc * block.size

    def estimate(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[Block], engine: Engine
    ) -> MatchingEstimate:
        """Estimate the time, memory and disk space for these blocks from short trials."""
        return estimate_gradient(self, partition, upper, blocks, engine)

    def resume(self, blocks: Sequence[DistilledBlock]) -> None:
        """Nothing to do: blocks do not depend on each other."""

    def distil_blocks(
        self, partition: Partition, upper: Partition | None, blocks: Sequence[tuple[int, Block]], advance: Advance
    ) -> Iterator[tuple[int, DistilledBlock]]:
        """The synsets of numbered blocks, each block a task of the engine."""
        costs = {number: self.cost(partition, upper, block) for number, block in blocks}
        where = engine_for(self.engine, self.target, sum(costs.values()))
        work = copy.copy(self)
        work.target = self.target.for_workers(range(len(self.target.trajectory)), Backend.parse(where))
        workers = self.workers([block for _, block in blocks])
        task = _DistilBlock(work, partition, upper)
        for number, block in engine.run_tasks(task, blocks, engine=where, workers=workers, description=None):
            advance(costs[number])
            yield number, block

    def workers(self, blocks: Sequence[Block]) -> int:
        """Worker processes on this machine: at most one per core, and as many as fit the memory with their blocks."""
        largest = self.bytes_per_group * max((block.size for block in blocks), default=1)
        return max(1, min(engine.count_cores(), int(self.settings.memory * 2**30 / largest)))

    def synsets(
        self, partition: Partition, upper: Partition | None, block: Block, advance: Advance = lambda amount: None
    ) -> Iterator[LevelSynset]:
        """The synsets of a block's clusters, then of its classes."""
        gradients = self._gradients(partition, block.clusters, advance)
        if block.clusters:
            yield "cluster", self._synset(partition, block.clusters, gradients, advance)
        if block.classes and upper is not None:
            if block.clusters:
                gradients = _class_gradients(partition, block, gradients)
            else:
                gradients = self._gradients(upper, block.classes, advance)
            yield "class", self._synset(upper, block.classes, gradients, advance)

    def _gradients(self, partition: Partition, groups: list[int], advance: Advance) -> Tensor:
        """∇L(θ_t; D_κ) ``(B, T, P)`` of some groups at the checkpoints."""
        members = [partition.rows(group) for group in groups]
        if self.settings.clip is None:
            return group_gradients(self.target, self.samples, members, self.checkpoints, advance)
        clip, seed = self.settings.clip, self.settings.seed
        return clipped_gradients(self.target, self.samples, members, self.checkpoints, clip, seed, advance)

    def _synset(self, partition: Partition, groups: list[int], gradients: Tensor, advance: Advance) -> Synset:
        """The synset of some groups of a partition, from their gradients ``(B, T, P)``."""
        names = [partition.names[group] for group in groups]
        samples = match_gradients(
            self.target,
            {t: gradients[:, column] for column, t in enumerate(self.checkpoints)},
            self.pairs,
            self._initial(partition, groups),
            names,
            self.settings,
            lambda amount: advance(self.synthetic_cost * amount),
        )
        weights = torch.as_tensor(odds(partition)[groups]).to(gradients)
        return self._scale(samples, names, gradients.mean(1) * weights[:, None], advance)

    def _initial(self, partition: Partition, groups: list[int]) -> SyntheticSamples:
        """The samples that the optimisation of some groups starts from."""
        starts = [
            initial_samples(self.target, self.samples, partition.rows(group), partition.names[group], self.settings)
            for group in groups
        ]
        return SyntheticSamples(torch.stack([x for x, _ in starts]), torch.stack([q for _, q in starts]))

    def _scale(self, samples: SyntheticSamples, names: list[str], wanted: Tensor, advance: Advance) -> Synset:
        """The synset of matched samples, with step sizes and alignment for the pulls ḡ ``(B, P)``."""
        settings, target = self.settings, self.target
        hard = settings.labels == "hard"
        wanted = wanted.to(target.device)
        gradients = synset_gradients(
            target, target.theta, target.fixed, samples.images, samples.targets, hard=hard
        ).detach()
        stopped = {names[row]: why for row, why in samples.stopped.items()}
        samples.images[list(samples.stopped)] = 0  # hide the training images that they started from
        usable = torch.tensor([name not in stopped for name in names])
        step_sizes = self._step_sizes(-gradients, wanted, advance).cpu() * usable
        steps = -gradients * step_sizes.to(gradients)[:, None]
        return Synset(
            names=tuple(names),
            images=samples.images.cpu(),
            targets=samples.targets.cpu(),
            step_sizes=step_sizes,
            alignment=F.cosine_similarity(steps, wanted, dim=1).cpu(),
            steps=settings.finetune_steps,
            hard=hard,
            stopped=stopped,
        )

    def _step_sizes(self, directions: Tensor, wanted: Tensor, advance: Advance) -> Tensor:
        """α_κ ``(B,)``: calibrated, or the fixed step size of the settings times the number of steps."""
        settings = self.settings
        if settings.step_size is None:
            return calibrate_step_sizes(
                self.target, self.samples, directions, wanted, self.damping, lambda amount: advance(_FORWARD * amount)
            )
        sign = 1 if settings.matching == "reverse" else -1
        return torch.full((len(directions),), sign * settings.step_size * settings.finetune_steps)


@dataclass(frozen=True)
class _DistilBlock:
    """A task that distils a numbered block."""

    work: GradientMatching
    partition: Partition
    upper: Partition | None

    def __call__(self, numbered: tuple[int, Block]) -> tuple[int, DistilledBlock]:
        number, block = numbered
        work = copy.copy(self.work)
        work.target = _on_own_device(self.work.target)
        return number, DistilledBlock(list(work.synsets(self.partition, self.upper, block)))


def _on_own_device(target: Target) -> Target:
    """The target with θ_τ on this task's GPU: ``cuda`` without a number names another GPU in each worker."""
    moved = copy.copy(target)
    moved.theta, moved.fixed = target.at(-1)
    return moved


def _check(target: Target, samples: Samples, settings: Settings) -> None:
    """Refuse to augment inputs that are not images, and soft targets for a loss that does not accept them."""
    augmentation.check_shape(settings.augment, samples.shape)
    outputs = target.outputs(samples.batch([0])[0])
    if settings.labels == "soft":
        try:
            target.loss(outputs, outputs.softmax(1))
        except Exception as error:  # the user's own loss may raise anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"the loss does not accept soft targets: use labels='hard' ({why}).") from None


def odds(partition: Partition) -> np.ndarray:
    """n_κ / (n − n_κ) ``(K,)``: the weight of a group relative to the mean loss of the others."""
    sizes = partition.sizes
    weights: np.ndarray = sizes / np.maximum(len(partition.groups) - sizes, 1)
    return weights


def _class_gradients(partition: Partition, block: Block, clusters: Tensor) -> Tensor:
    """Gradients of a block's classes ``(classes, T, P)``: weighted means of their clusters' gradients ``(B, T, P)``."""
    weights = np.where(class_members(partition, block), partition.sizes[block.clusters], 0)
    shares = torch.as_tensor(weights / weights.sum(1, keepdims=True)).to(clusters)
    return torch.einsum("lc,ctp->ltp", shares, clusters)
