"""A problem: a trained target, its groups, the truth from retraining and what every method says of it.

Everything is kept in a folder under a name that says what it was made from. Benchmarks of one setup share it, and one
that was killed goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddm import datasets, designs, engine, networks
from ddm.baselines.protocol import ScoreRequest
from ddm.bench.outcome import Outcome
from ddm.bench.setup import Setup
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Data, Samples
from ddm.effects import Asked, Effects, retrained
from ddm.errors import InputError
from ddm.exact import Exact, group_rows
from ddm.files import read_json, write_json
from ddm.matching import Settings, distil
from ddm.partition import Partition, make_partition
from ddm.target import Loss, Target
from ddm.training import train

NOISY_SHARE = 0.2

NOTHING = np.array([], dtype=np.int64)
"""The rows of no sample."""


class Problem:
    """One target with its groups, made on demand.

    setup:  what it is
    work:   the folder where everything made is kept
    engine: where retraining runs
    """

    def __init__(self, setup: Setup, work: Path, engine: engine.Engine = None) -> None:
        self.setup, self.work, self.engine = setup, work, engine

    def changed(self, **changes: object) -> Problem:
        """The same problem with some of its setup changed; what stays the same is not made again."""
        return Problem(replace(self.setup, **changes), self.work, self.engine)  # type: ignore[arg-type]

    @cached_property
    def data(self) -> Data:
        """The dataset."""
        setup = self.setup
        data = datasets.load(setup.data, setup.root, limit=setup.limit, size=setup.size)
        if not setup.noise:
            return data
        return replace(data, train=with_noise(data.train, self._noisy_rows, setup.noise, setup.seed))

    @cached_property
    def clean(self) -> Problem:
        """The same problem without noise."""
        return self.changed(noise=0.0)

    @cached_property
    def noisy_groups(self) -> np.ndarray:
        """Which groups have noise ``(K,)``: drawn until they hold a fifth of the samples."""
        partition = self.clean.partition
        order = np.random.default_rng([self.setup.seed, 13]).permutation(len(partition))
        before = np.cumsum(partition.shares[order]) - partition.shares[order]
        noisy = np.zeros(len(partition), dtype=bool)
        noisy[order[before < NOISY_SHARE]] = True
        return noisy

    @property
    def _noisy_rows(self) -> np.ndarray:
        return np.flatnonzero(self.noisy_groups[self.clean.partition.groups])

    @property
    def train(self) -> Samples:
        """The training samples."""
        return self.data.train

    @cached_property
    def test(self) -> Samples:
        """The test samples that are asked about."""
        return _some(self.data.test, self.setup.tests, self.setup.seed)

    @cached_property
    def validation(self) -> Samples:
        """The validation samples whose loss is asked about."""
        return _some(self.data.validation, self.setup.validation, self.setup.seed)

    @property
    def network(self) -> nn.Module:
        """The network with θ_0."""
        options = {"seed": self.setup.seed, **self.setup.options}
        return networks.build(self.setup.model, self.train.shape, len(self.data.classes), **options)

    @property
    def loss(self) -> Loss:
        """What the target is trained with."""
        return torch.nn.functional.cross_entropy

    @property
    def target_folder(self) -> Path:
        """Where the trajectory and the retrained models are."""
        return self.work / f"target-{self.setup.training_key()}"

    @cached_property
    def target(self) -> Target:
        """The target, trained on one thread."""
        folder = self.target_folder / "trajectory"
        with engine.one_thread():
            return train(self.network, self.train, self.setup.recipe, loss=self.loss, directory=folder)

    @cached_property
    def partition(self) -> Partition:
        """The groups; with noise, those of the clean data."""
        if self.setup.noise:
            return self.clean.partition
        return make_partition(self.target, self.train, self.setup.partition, self.setup.clusters, seed=self.setup.seed)

    @cached_property
    def exact(self) -> Exact:
        """Retraining."""
        return Exact(self.target, self.train, self.target_folder / "exact", engine=self.engine)

    @cached_property
    def asked(self) -> Asked:
        """What effects are asked about: every group, and random unions."""
        count = len(self.partition)
        unions = designs.random(count, self.setup.unions, seed=self.setup.seed)
        return Asked(self.test, self.validation, np.arange(count), unions)

    @cached_property
    def question(self) -> ScoreRequest:
        """What a baseline is given."""
        return ScoreRequest(self.target, self.train, self.partition, self.test, self.validation, self.setup.seed)

    @cached_property
    def truth(self) -> list[Effects]:
        """What retraining shows, for each batch order."""
        removals = [NOTHING, *group_rows(self.partition, self.asked.removed)]
        self.exact.make(removals, range(self.setup.orders))
        return [retrained(self.exact, self.partition, self.asked, order) for order in range(self.setup.orders)]

    @cached_property
    def training_seconds(self) -> float:
        """Time of one training of the target on one thread, measured where the retrainings ran."""
        return self.exact.seconds([NOTHING])

    def datamodel(self, settings: Settings) -> DistilledDatamodel:
        """A distilled datamodel of the target; its parts are kept."""
        folder = self.parts(settings)
        target, partition, started = self.target, self.partition, time.perf_counter()
        # In this process: its seconds are compared with those of others.
        synset, upper = distil(target, self.train, partition, settings, folder, "serial")
        if not (folder / "seconds.json").exists():
            write_json(folder / "seconds.json", time.perf_counter() - started)
        return DistilledDatamodel(
            self.target, self.partition, synset, upper, settings, self.train.fingerprint(), samples=self.train
        )

    def matching_seconds(self, settings: Settings) -> float:
        """What distilling a datamodel took when it was done."""
        self.datamodel(settings)
        seconds = read_json(self.parts(settings) / "seconds.json")
        if not isinstance(seconds, float):
            raise InputError(f"'{self.parts(settings)}' does not say what it took: delete it, and it is made again.")
        return seconds

    def parts(self, settings: Settings) -> Path:
        """Where the parts of a distillation are kept."""
        return self.work / f"parts-{replace(self.setup, settings=settings).key()}"

    def outcomes(self, methods: Sequence[str]) -> dict[str, Outcome]:
        """What each method says, with its cost; those not known yet are found in parallel."""
        self.partition  # noqa: B018 (trains the target once, before processes need it)
        missing = [name for name in methods if not self.outcome_file(name).exists()]
        for _ in engine.each(_Find(self.setup, self.work), missing, what="methods"):
            pass
        return {name: Outcome.load(self.outcome_file(name)) for name in methods}

    def outcome_file(self, method: str) -> Path:
        """Where a method's outcome is kept."""
        key = self.setup.key() if method.startswith(("ddm", "response", "ladder")) else self.setup.question_key()
        return self.work / f"scores-{key}" / f"{method}.safetensors"

    def rows_of(self, groups: np.ndarray) -> np.ndarray:
        """Positions of the samples of some groups."""
        return np.flatnonzero(np.isin(self.partition.groups, groups))


class _Find:
    """Finds the outcome of a method in a process of its own."""

    def __init__(self, setup: Setup, work: Path) -> None:
        self.setup, self.work = setup, work

    def __call__(self, method: str) -> None:
        from ddm.bench.methods import find

        problem = Problem(self.setup, self.work)
        find(problem, method).save(problem.outcome_file(method))


def with_noise(samples: Samples, rows: np.ndarray, norm: float, seed: int) -> Samples:
    """Samples with Gaussian noise of root mean square ``norm`` a pixel (on the scale 0 to 1) on those at ``rows``."""
    raw = samples.raw.clone()
    scale = 255.0 if raw.dtype == torch.uint8 else 1.0
    noise = torch.randn(len(rows), *samples.shape, generator=torch.Generator().manual_seed(seed))
    noise = noise / noise.square().flatten(1).mean(1).sqrt().view(-1, *([1] * len(samples.shape)))
    changed = raw[rows].float() + scale * norm * noise
    raw[rows] = changed.round().clamp(0, 255).to(torch.uint8) if raw.dtype == torch.uint8 else changed
    return replace(samples, raw=raw)


def _some(samples: Samples, count: int, seed: int) -> Samples:
    if len(samples) <= count:
        return samples
    return samples[np.sort(np.random.default_rng([seed, 7]).choice(len(samples), count, replace=False))]
