"""Time and memory of reverse and forward matching: backward passes of real samples, and steps of Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ddm.compute.backends import Backend
from ddm.compute.engine import Engine, count_cores
from ddm.compute.one_thread import one_thread
from ddm.compute.stopwatch import time_mean
from ddm.distil.blocks import Block
from ddm.distil.estimate import MatchingEstimate, backward_seconds
from ddm.distil.gradient.algorithm import SyntheticSamples, match_gradients
from ddm.distil.matching import engine_for
from ddm.groups.partition import Partition

if TYPE_CHECKING:
    from ddm.distil.gradient.matching import GradientMatching

_STEPS = 4
"""Distillation steps of a trial."""


def estimate_gradient(
    matching: GradientMatching,
    partition: Partition,
    upper: Partition | None,
    blocks: Sequence[Block],
    engine: Engine,
) -> MatchingEstimate:
    """Estimate the time, memory and disk space of reverse or forward matching for these blocks."""
    samples = matching.samples
    passes = sum(matching.cost(partition, upper, block) for block in blocks)
    backend = Backend.parse(engine_for(engine, matching.target, passes))
    count = _parallel_blocks(matching, blocks, backend)
    workers = 0 if backend.remote or count == 1 else count
    synthetic = sum(map(matching.synthetic_passes, blocks))
    real = passes - matching.synthetic_cost * synthetic
    rows = partition.rows(0)[: matching.settings.samples]
    seconds = real * backward_seconds(matching.target, samples, rows) + synthetic * _synthetic_seconds(matching, blocks)
    largest = max(block.size for block in blocks) * matching.bytes_per_group
    floats = math.prod(samples.shape) + len(samples.classes)
    return MatchingEstimate(
        seconds=seconds / count,
        memory=largest * max(1, workers),
        workers=workers,
        worker_bytes=samples.nbytes,
        synset_bytes=4 * sum(block.size for block in blocks) * matching.settings.ipc * floats,
    )


def _parallel_blocks(matching: GradientMatching, blocks: Sequence[Block], backend: Backend) -> int:
    """Blocks that are distilled at the same time. A cluster is assumed to have as many cores as this machine."""
    if backend.kind == "serial":
        return 1
    return count_cores() if backend.remote else min(matching.workers(blocks), len(blocks))


def _synthetic_seconds(matching: GradientMatching, blocks: Sequence[Block]) -> float:
    """Seconds of a distillation step for one synthetic sample, from a few steps for the groups of the largest block."""
    block = max(blocks, key=lambda block: block.size)
    trials = [_trial(matching, len(groups)) for groups in (block.clusters, block.classes) if groups]
    with one_thread():
        passed = time_mean(lambda: [run() for run in trials])
    return passed / (len(matching.pairs[:_STEPS]) * block.size * matching.settings.ipc)


def _trial(matching: GradientMatching, groups: int) -> Callable[[], object]:
    """A few distillation steps for ``groups`` groups, from random images towards an arbitrary gradient."""
    settings, theta, samples = matching.settings, matching.target.theta, matching.samples
    initial = SyntheticSamples(
        torch.randn(groups, settings.ipc, *samples.shape).to(theta),
        torch.full((groups, settings.ipc, len(samples.classes)), 0.5).to(theta),
    )
    wanted = dict.fromkeys(matching.checkpoints, theta.expand(groups, -1))
    pairs, names = matching.pairs[:_STEPS], [""] * groups
    return lambda: match_gradients(matching.target, wanted, pairs, initial, names, settings)
