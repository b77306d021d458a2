"""Estimate the time, memory and disk space of a fit of a target, and choose settings that fit a budget of time.

Short trials of each stage are scaled to the amount of work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ddm.compute import progress, stopwatch
from ddm.compute.engine import Engine
from ddm.compute.memory import resident_bytes
from ddm.compute.progress import format_duration
from ddm.data.reading import Collate
from ddm.data.samples import Samples
from ddm.distil.driver import estimate_matching
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.settings import Settings, changed
from ddm.errors import InputError
from ddm.groups.features import Features, features_of
from ddm.groups.partition import Partition, PartitionLike, kmeans, make_partition, sequential
from ddm.training.target import Target

_TRIAL_SAMPLES = 2000
"""Maximum samples in the trial of k-means."""

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400}

_LEAST = {"checkpoints": 2, "samples": 16, "curvature": 128}
"""Settings below these are not chosen to save time."""


@dataclass(frozen=True)
class Estimate:
    """The time, memory and disk space that a fit needs.

    seconds: time of each stage
    memory:  peak bytes of this process and its workers together, including the data
    workers: number of worker processes on this machine
    disk:    bytes of the run directory
    kept:    bytes of the kept responses; 0 if none are kept
    synset:  seconds of the matching that the synset takes, and that a fit without it saves
    """

    seconds: dict[str, float]
    memory: int
    workers: int
    disk: int
    kept: int
    synset: float

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {"seconds": self.seconds | {"all": self.total}}

    def __repr__(self) -> str:
        stages = ", ".join(f"{stage} {format_duration(seconds)}" for stage, seconds in self.seconds.items())
        return (
            f"Estimate: about {format_duration(self.total)} ({stages}), {self.memory / 2**30:.1f} GiB of memory, "
            f"{self.disk / 2**20:,.0f} MiB of disk, each within a factor of two"
        )


def plan(
    target: Target,
    samples: Samples | Dataset[Any],
    clusters: int = 10,
    *,
    partition: PartitionLike = "kmeans",
    features: Features = None,
    collate: Collate | None = None,
    settings: Settings | None = None,
    parameters: str | list[str] | None = None,
    engine: Engine = None,
    **changes: Any,
) -> Estimate:
    """The cost of ``DistilledDatamodel.fit`` with the same arguments, within a factor of two; nothing is written."""
    samples = Samples.from_dataset(samples, task=target.task, collate=collate)
    target = target if parameters is None else target.displacing(parameters, samples.batch([0])[0])
    settings = changed(settings or Settings(), changes)
    return estimate(target, samples, clusters, partition, features, settings, engine)


def estimate(
    target: Target,
    samples: Samples,
    clusters: int,
    partition: PartitionLike,
    features: Features,
    settings: Settings,
    engine: Engine = None,
    empty: int = 0,
) -> Estimate:
    """The cost of a fit; ``empty`` is the memory of a process without data, which each worker needs."""
    with progress.silent():
        groups = _stand_in(target, samples, clusters, partition, settings.seed)
        matching = estimate_matching(target, samples, groups, settings, engine)
        clustering = _time_clustering(target, samples, clusters, features) if _is_kmeans(partition) else 0.0
    return Estimate(
        {"partition": clustering, "matching": matching.seconds},
        resident_bytes() + matching.memory + matching.workers * (empty + matching.worker_bytes),
        matching.workers,
        _disk(target, matching),
        matching.kept_bytes,
        matching.encoding,
    )


def _is_kmeans(partition: PartitionLike) -> bool:
    return isinstance(partition, str) and partition == "kmeans"


def _stand_in(target: Target, samples: Samples, clusters: int, partition: PartitionLike, seed: int) -> Partition:
    """A partition with the same number of groups, of about the same sizes, as the real one."""
    if _is_kmeans(partition):
        return sequential(samples, clusters)
    return make_partition(target, samples, partition, clusters, None, seed)


def _time_clustering(target: Target, samples: Samples, clusters: int, features: Features) -> float:
    """Seconds of features and k-means, scaled up from samples of the largest class, plus loading libraries."""
    labels = samples.labels.numpy() if samples.has_classes else np.zeros(len(samples), dtype=np.int64)
    some = samples[np.flatnonzero(labels == np.bincount(labels).argmax())[:_TRIAL_SAMPLES]]
    first = stopwatch.time_once(lambda: kmeans(some[:2], np.zeros((2, 1)), 1))
    passed = stopwatch.time_once(lambda: kmeans(some, features_of(some, features, target), clusters))
    return first + passed * len(samples) / len(some)


def _disk(target: Target, matching: MatchingEstimate) -> int:
    """Bytes of the checkpoints, of the last training state, and of the synsets and responses with their blocks."""
    state = sum(tensor.nbytes for tensor in target.trajectory[0].values())
    return state * (len(target.trajectory) + 2) + 2 * (matching.synset_bytes + matching.kept_bytes)


def seconds_of(budget: str | float) -> float:
    """The seconds of a budget such as ``10 min``, ``2 h``, ``90 s`` or ``90``."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*?)s?\s*", str(budget).lower())
    unit = (found[2] or "s") if found else ""
    try:
        seconds = float(found[1]) * _UNITS[unit] if found else math.nan
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"a budget of '{budget}' is not a time: give one such as '90 s', '10 min' or '2 h'.")
    return seconds


def settings_within(
    budget: str | float,
    target: Target,
    samples: Samples,
    clusters: int,
    partition: PartitionLike,
    features: Features,
    settings: Settings,
    engine: Engine = None,
) -> Settings:
    """The most thorough settings whose plan stays within a budget of time. What is given up is said."""
    limit, takes = seconds_of(budget), 0.0
    for found in _cheaper(settings):
        takes = estimate(target, samples, clusters, partition, features, found, engine).total
        if takes <= limit:
            if found != settings:
                planned = format_duration(takes)
                progress.note(f"To stay within {budget} (planned: {planned}), ddm uses {_said(found)}.")
            return found
    raise InputError(
        f"even the cheapest fit of this target takes about {format_duration(takes)}, more than the budget of {budget}: "
        "allow more, or give fewer groups or parameters='head'."
    )


def _cheaper(settings: Settings) -> Iterator[Settings]:
    """The settings, then ever cheaper ones: without a synset, then fewer checkpoints, samples and curvature rows."""
    yield settings
    if settings.matching != "response" or not settings.keep:
        yield from (replace(settings, steps=min(settings.steps, steps)) for steps in (20, 5))
        return
    settings = replace(settings, synset=False)
    yield settings
    for share in (2, 4, 16):
        yield replace(
            settings,
            checkpoints=_at_most(settings.checkpoints, 16 // share, "checkpoints"),
            samples=_at_most(settings.samples, 256 // share, "samples"),
            curvature=_at_most(settings.curvature, 2048 // share, "curvature"),
        )


def _at_most(value: int | None, limit: int, name: str) -> int:
    """A setting lowered to ``limit``, but not below its least useful value."""
    limit = max(limit, _LEAST[name])
    return limit if value is None else min(value, limit)


def _said(settings: Settings) -> str:
    """The settings that a budget may change, in words."""
    if settings.matching != "response":
        return f"{settings.steps} steps"
    rows = "" if settings.curvature is None else f" and {settings.curvature:,} curvature rows"
    return f"no synset, {settings.checkpoints} checkpoints, {settings.samples} samples per group{rows}"
