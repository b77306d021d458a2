"""A benchmark problem: a trained target, its groups, true effects from retraining, and every method's predictions.

Results are cached in a work folder, under names that hash all that determines them. Benchmarks with the same setup
share the cache, and a benchmark that was killed resumes from it.
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

from ddm import data as datasets
from ddm import networks
from ddm.baselines.protocol import ScoreRequest
from ddm.bench import bert, real_data
from ddm.bench.outcome import Outcome
from ddm.bench.setup import Setup, short_hash
from ddm.bench.truths import StoredTruth
from ddm.compute import engine
from ddm.compute.files import read_json, write_json
from ddm.compute.one_thread import one_thread
from ddm.counterfactual import designs
from ddm.data.losses import Loss
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings
from ddm.errors import InputError
from ddm.groups.partition import Partition, make_partition
from ddm.training.loop import train
from ddm.training.target import Target
from ddm.truth.effects import EffectQuery, Effects, measure_effects
from ddm.truth.retraining import Retraining, group_rows

NOISY_SHARE = 0.2

NO_ROWS = np.array([], dtype=np.int64)
"""Row numbers of an empty set of samples: retrain on everything."""


class Problem:
    """A target with its groups, computed on demand.

    setup:  data, target, groups and settings
    work:   the folder of cached results
    engine: where retraining runs
    stored: the stored truth, which gives groups and true effects without retraining
    """

    def __init__(
        self, setup: Setup, work: Path, engine: engine.Engine = None, stored: StoredTruth | None = None
    ) -> None:
        if stored is not None and not stored.fits(setup):
            raise InputError("the stored truth is of another setup: make it again with ddm bench truths.")
        self.setup, self.work, self.engine, self.stored = setup, work, engine, stored

    def with_changes(self, **changes: object) -> Problem:
        """The same problem with some fields of its setup changed; cached results that still apply are reused."""
        setup = replace(self.setup, **changes)  # type: ignore[arg-type]
        stored = self.stored if self.stored is not None and self.stored.fits(setup) else None
        return Problem(setup, self.work, self.engine, stored)

    @cached_property
    def data(self) -> Data:
        """The dataset, with noise if the setup asks for it."""
        setup = self.setup
        if real_data.is_known(setup.data):
            return real_data.load(setup.data, setup.root)
        data = datasets.load(setup.data, setup.root, limit=setup.limit, size=setup.size)
        if not setup.noise:
            return data
        return replace(data, train=with_noise(data.train, self._noisy_rows, setup.noise, setup.seed))

    @property
    def test_score(self) -> float:
        """The target's accuracy on the whole test split; of a regression R², at least 0."""
        test = self.data.test
        if test.has_classes:
            return self.target.accuracy(test)
        errors = self.target.outputs(test.batch()[0])[:, 0] - test.labels
        return max(0.0, 1 - float(errors.square().mean() / test.labels.var(correction=0)))

    @cached_property
    def without_noise(self) -> Problem:
        """The same problem without noise."""
        return self.with_changes(noise=0.0)

    @cached_property
    def noisy_groups(self) -> np.ndarray:
        """True for groups with noise ``(K,)``, drawn at random until they hold a fifth of the samples."""
        partition = self.without_noise.partition
        order = np.random.default_rng([self.setup.seed, 13]).permutation(len(partition))
        before = np.cumsum(partition.shares[order]) - partition.shares[order]
        noisy = np.zeros(len(partition), dtype=bool)
        noisy[order[before < NOISY_SHARE]] = True
        return noisy

    @property
    def _noisy_rows(self) -> np.ndarray:
        return np.flatnonzero(self.noisy_groups[self.without_noise.partition.groups])

    @property
    def train(self) -> Samples:
        """The training samples."""
        return self.data.train

    @cached_property
    def test(self) -> Samples:
        """The test samples to explain."""
        return _random_subset(self.data.test, self.setup.tests, self.setup.seed)

    @cached_property
    def validation(self) -> Samples:
        """The validation samples whose mean loss is explained."""
        return _random_subset(self.data.validation, self.setup.validation, self.setup.seed)

    @cached_property
    def data_hashes(self) -> dict[str, str]:
        """A hash of the inputs and labels of the training, test and validation samples."""
        splits = {"training": self.train, "test": self.test, "validation": self.validation}
        parts = {name: samples.fingerprint_parts() for name, samples in splits.items()}
        return {name: short_hash([part["inputs"], part["labels"], part["classes"]], 32) for name, part in parts.items()}

    @property
    def network(self) -> nn.Module:
        """A new network with the initial weights θ_0."""
        options = {"seed": self.setup.seed, **self.setup.options}
        if self.setup.model == bert.NAME:
            return bert.build(self.train.shape, len(self.data.classes), **options)
        return networks.build(self.setup.model, self.train.shape, len(self.data.classes), **options)

    @property
    def loss(self) -> Loss:
        """The training loss."""
        smoothing = self.setup.smoothing
        if not self.train.has_classes:
            return torch.nn.functional.mse_loss
        return nn.CrossEntropyLoss(label_smoothing=smoothing) if smoothing else torch.nn.functional.cross_entropy

    @property
    def target_folder(self) -> Path:
        """The folder of the trajectory and of the retrained models."""
        return self.work / f"target-{self.setup.training_key()}"

    @cached_property
    def target(self) -> Target:
        """The target, trained on one thread."""
        folder = self.target_folder / "trajectory"
        with one_thread():
            target = train(self.network, self.train, self.setup.recipe, loss=self.loss, directory=folder)
        if self.stored is not None:
            self.stored.check_target(target.outputs(self.effect_query.inputs()), target.task)
        return target

    def target_with_order(self, order: int) -> Target:
        """A target trained with another batch order from the same initial weights; order 0 is the target itself."""
        if not order:
            return self.target
        recipe = self.setup.recipe.with_order(order)
        folder = self.target_folder / f"trajectory-{order}"
        with one_thread():
            return train(self.network, self.train, recipe, loss=self.loss, directory=folder)

    @cached_property
    def partition(self) -> Partition:
        """The groups; a problem with noise has the groups of the clean data."""
        if self.stored is not None:
            self.stored.check_data(self.data_hashes, len(self.train))
            return self.stored.partition
        if self.setup.noise:
            return self.without_noise.partition
        return make_partition(self.target, self.train, self.setup.partition, self.setup.clusters, seed=self.setup.seed)

    @cached_property
    def exact(self) -> Retraining:
        """Retrains the target, and caches the retrained models."""
        return Retraining(self.target, self.train, self.target_folder / "exact", engine=self.engine)

    @cached_property
    def effect_query(self) -> EffectQuery:
        """The effects to predict: those of every group and of random unions of groups."""
        count = len(self.partition)
        drawn = designs.random(count, self.setup.unions, seed=self.setup.seed)
        unions = drawn if self.stored is None else self.stored.unions
        return EffectQuery(self.test, self.validation, np.arange(count), unions)

    @cached_property
    def score_request(self) -> ScoreRequest:
        """The request that baselines answer."""
        return ScoreRequest(self.target, self.train, self.partition, self.test, self.validation, self.setup.seed)

    @cached_property
    def truth(self) -> list[Effects]:
        """True effects from retraining, one for each batch order."""
        if self.stored is not None:
            return self.stored.effects(self.effect_query)
        removals = [NO_ROWS, *group_rows(self.partition, self.effect_query.removed)]
        self.exact.run(removals, range(self.setup.orders))
        return [
            measure_effects(self.exact, self.partition, self.effect_query, order) for order in range(self.setup.orders)
        ]

    @cached_property
    def training_seconds(self) -> float:
        """Seconds of one training of the target on one thread, measured where the retrainings ran."""
        return self.exact.mean_seconds([NO_ROWS])

    def datamodel(self, settings: Settings) -> DistilledDatamodel:
        """Fit a datamodel of the target; its synsets and the seconds it took are cached."""
        folder = self.distillation_folder(settings)
        target, partition, started = self.target, self.partition, time.perf_counter()
        # Fit in this process, so that the seconds can be compared with those of other methods.
        datamodel = DistilledDatamodel.fit(
            target, self.train, partition=partition, settings=settings, directory=folder, engine="serial"
        )
        if not (folder / "seconds.json").exists():
            write_json(folder / "seconds.json", time.perf_counter() - started)
        return datamodel

    def matching_seconds(self, settings: Settings) -> float:
        """Seconds that fitting a datamodel took the first time."""
        self.datamodel(settings)
        path = self.distillation_folder(settings) / "seconds.json"
        seconds = read_json(path)
        if not isinstance(seconds, float):
            raise InputError(f"'{path}' holds no number of seconds: delete '{path.parent}', and it is fitted again.")
        return seconds

    def distillation_folder(self, settings: Settings) -> Path:
        """The folder of the synsets distilled with some settings."""
        return self.work / f"parts-{replace(self.setup, settings=settings).key()}{self._stored_suffix}"

    def outcomes(self, methods: Sequence[str]) -> dict[str, Outcome]:
        """The outcome of each method; those not in the cache are computed in parallel."""
        _ = self.target, self.partition  # computed once, before the workers need them
        missing = [name for name in methods if not self.outcome_file(name).exists()]
        for _ in engine.run_tasks(_RunMethod(self.setup, self.work, self.stored), missing, description="methods"):
            pass
        return {name: Outcome.load(self.outcome_file(name)) for name in methods}

    def outcome_file(self, method: str) -> Path:
        """The file of a method's outcome."""
        key = self.setup.key() if method.startswith(("ddm", "response", "ladder")) else self.setup.question_key()
        return self.work / f"scores-{key}{self._stored_suffix}" / f"{method}.safetensors"

    @property
    def _stored_suffix(self) -> str:
        """Keeps results for stored groups apart: on this machine, clustering may give other groups."""
        return "" if self.stored is None else f"-{self.stored.key}"

    @property
    def single_groups(self) -> list[np.ndarray]:
        """Row numbers of each group."""
        return group_rows(self.partition, designs.leave_one_out(len(self.partition)))

    def rows_of(self, groups: np.ndarray) -> np.ndarray:
        """Row numbers of the samples of some groups."""
        return np.flatnonzero(np.isin(self.partition.groups, groups))


class _RunMethod:
    """A worker task that computes and stores the outcome of a method."""

    def __init__(self, setup: Setup, work: Path, stored: StoredTruth | None) -> None:
        self.setup, self.work, self.stored = setup, work, stored

    def __call__(self, method: str) -> None:
        from ddm.bench.methods import run_method

        problem = Problem(self.setup, self.work, stored=self.stored)
        run_method(problem, method).save(problem.outcome_file(method))


def with_noise(samples: Samples, rows: np.ndarray, norm: float, seed: int) -> Samples:
    """Add Gaussian noise to the samples at ``rows``.

    norm: root mean square of the noise per pixel, on a scale of 0 to 1
    """
    raw = samples.pixels.clone()
    scale = 255.0 if raw.dtype == torch.uint8 else 1.0
    noise = torch.randn(len(rows), *samples.shape, generator=torch.Generator().manual_seed(seed))
    noise = noise / noise.square().flatten(1).mean(1).sqrt().view(-1, *([1] * len(samples.shape)))
    changed = raw[rows].float() + scale * norm * noise
    raw[rows] = changed.round().clamp(0, 255).to(torch.uint8) if raw.dtype == torch.uint8 else changed
    return replace(samples, raw=raw)


def _random_subset(samples: Samples, count: int, seed: int) -> Samples:
    if len(samples) <= count:
        return samples
    return samples[np.sort(np.random.default_rng([seed, 7]).choice(len(samples), count, replace=False))]
