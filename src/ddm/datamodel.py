"""DistilledDatamodel, the front door: fit once, then ask."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddm.answers.attributed import attributed
from ddm.answers.attribution import Attribution
from ddm.answers.diagnosed import diagnosed
from ddm.answers.diagnosis import Diagnosis
from ddm.answers.objectives import Measure, Objective, resolve
from ddm.answers.question import Question, batch_of
from ddm.answers.shares import Shares, shares
from ddm.answers.trace import Trace
from ddm.compute import progress
from ddm.compute.engine import Engine
from ddm.compute.files import named
from ddm.counterfactual import designs
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.designs import Weights
from ddm.data.samples import Samples
from ddm.distil import Settings, changed, distil
from ddm.distil import private as made_private
from ddm.distil.response.solve import Responses
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.groups.partition import Features, Group, Partition, make_partition
from ddm.plots import html
from ddm.training.target import Target
from ddm.truth.audit import Audit, audit, trust_line
from ddm.truth.retraining import NO_ROWS, Retrain, Retraining, group_rows


class DistilledDatamodel:
    """What the target would be without any groups of its training set, and what that does to any behaviour.

    partition:    the groups
    synset:       the synset of every group
    class_synset: that of every class, where groups lie within classes
    settings:     how they were distilled
    data:         fingerprint of the training set
    config:       what replays the run, if the command line made it
    samples:      the training set, where it is at hand; no file of a run holds it
    audited:      what an audit of it found
    described:    the facts of the training set, for a datamodel that has it not at hand
    find:         reads the training set when it is first needed, for a datamodel of a run that names its data
    """

    def __init__(
        self,
        target: Target,
        partition: Partition,
        synset: Synset,
        class_synset: Synset | None,
        settings: Settings,
        data: str,
        config: dict[str, Any] | None = None,
        samples: Samples | None = None,
        audited: Audit | None = None,
        described: Mapping[str, Any] | None = None,
        find: Callable[[], Samples] | None = None,
    ) -> None:
        for one in (synset, class_synset):
            if one is not None:
                one.check_made_for(target.origin(data))
        self._described, self._find = described, find
        self.target, self.partition, self.settings, self.data = target, partition, settings, data
        self.config, self.samples, self.audited = config, samples, audited
        self.synset, self.class_synset = synset, class_synset
        self._clusters = Counterfactuals(target, synset)
        self._classes = Counterfactuals(target, class_synset) if class_synset is not None else None
        self._response_cache: Responses | None = None

    @classmethod
    def fit(
        cls,
        target: Target,
        samples: Samples | Dataset[Any],
        clusters: int = 10,
        *,
        partition: str | Partition | Sequence[Any] | np.ndarray = "kmeans",
        features: Features = None,
        settings: Settings | None = None,
        private: bool = False,
        directory: Path | str | None = None,
        engine: Engine = None,
        **changes: Any,
    ) -> DistilledDatamodel:
        """Split the training set into groups and distil the influence of each.

        partition: kmeans (``clusters`` a class), class, sequence, a group label for each sample, or a ``Partition``
        features:  what k-means works on; by default the target's penultimate layer
        settings:  how to distil; ``changes`` replace single ones, e.g. ``ipc=2, matching="forward"``
        private:   start from noise and clip the gradients of samples, so that a synset holds less of single ones
        directory: where finished parts are kept, so that a killed fit goes on
        engine:    where independent pieces run: serial, processes, dask://HOST:PORT, ray or ray://HOST:PORT; the
                   result is the same, bit for bit (default: this process where the work is little, else processes)
        """
        samples = Samples.of(samples)
        if target.data not in (None, samples.fingerprint()):
            raise InputError("the target was trained on other samples than these: give the ones it was trained on.")
        settings = changed(settings or Settings(), changes)
        settings = made_private(settings) if private else settings
        groups = make_partition(target, samples, partition, clusters, features, settings.seed)
        parts = Path(directory) if directory is not None else None
        synset, class_synset = distil(target, samples, groups, settings, parts, engine)
        return cls(target, groups, synset, class_synset, settings, samples.fingerprint(), samples=samples)

    def attribute(
        self,
        question: Question,
        objective: str | Objective | Measure = "prediction",
        *,
        level: str = "cluster",
        design: str | np.ndarray = "leave-one-out",
        perturbations: int | None = None,
        beta: Weights = "uniform",
        seed: int = 0,
        fast: bool = False,
    ) -> Attribution:
        """What removing each group does to ``objective`` on the samples asked about.

        level:  cluster, or class
        design: leave-one-out, random (``perturbations`` unions of half of the groups, default 4 K), or an array
                p ``(M, K)`` that is 1 where a group stays and 0 where it is removed
        beta:   weight of each perturbation: uniform, removed (fewer removed groups count more), or a callable of p
        fast:   take logits from one Jacobian of the target instead of from every model: the same to first order
        """
        models, partition = self._level(level)
        removed = designs.make(design, len(partition), perturbations, seed)
        return self._attribute(models, partition, removed, self._batch(question), objective, beta, fast=fast)

    def trace(
        self,
        question: Question,
        objective: str | Objective | Measure = "prediction",
        *,
        full: bool = False,
        verify: int = 0,
        train: Samples | Dataset[Any] | None = None,
        by: Retrain | None = None,
        directory: Path | str | None = None,
        workers: int | None = None,
        engine: Engine = None,
    ) -> Trace:
        """The class and then the cluster most responsible, by L + C fine-tunings; ``full`` searches every group.

        verify: really retrain without so many of the best candidates, and once with all groups to compare with, and
                answer with the exact effects. The cost is printed before it starts; ``train``, ``by``, ``directory``,
                ``workers`` and ``engine`` are those of ``audit``
        """
        found = self._trace(question, objective, full)
        if not verify:
            return found
        chosen = np.flatnonzero(self.partition.mask([name for name, _ in found.clusters.top(verify)]))
        with self._exact(train, by, directory, workers, engine) as retraining:
            verified = self._verified(retraining, chosen, self._batch(question), objective)
        return replace(found, verified=verified)

    def _trace(self, question: Question, objective: str | Objective | Measure, full: bool) -> Trace:
        batch = self._batch(question)
        clusters = designs.leave_one_out(len(self.partition))
        upper_level = self.partition.by_class()
        if full or self._classes is None or upper_level is None or len(upper_level) == len(self.partition):
            found = self._attribute(self._clusters, self.partition, clusters, batch, objective, "uniform")
            return Trace(None, found, len(self.partition))
        models, classes = self._level("class")
        upper = self._attribute(models, classes, designs.leave_one_out(len(classes)), batch, objective, "uniform")
        parent = np.asarray(classes.parents)[upper.order()[0]]
        inside = np.flatnonzero(self.partition.parents == parent)
        lower = self._attribute(
            self._clusters, self.partition, clusters[inside], batch, objective, "uniform", chosen=inside
        )
        return Trace(upper, lower, len(self.partition))

    def shares(
        self,
        question: Question,
        group: Group | None = None,
        objective: str | Objective | Measure = "prediction",
        *,
        output: str | None = None,
        train: Samples | Dataset[Any] | None = None,
    ) -> Shares:
        """The samples of a group by what each contributes to the group's effect; the shares add up to it.

        group:  by default the one that ``trace`` finds
        output: the value asked about, for objectives with one for each class
        train:  the training set, for a datamodel that was loaded and cannot find it again
        """
        asked, (x, y) = resolve(objective, self.target.loss), self._batch(question)
        number = self.partition.index(self._trace(question, objective, False).group if group is None else group)
        removed = designs.leave_one_out(len(self.partition))[number : number + 1]
        self._clusters.check_usable(removed[0])
        effects = self._attribute(
            self._clusters, self.partition, removed, (x, y), objective, "uniform", chosen=np.array([number])
        )
        effects = effects if output is None else effects.on(output)
        rows = self.partition.rows(number)
        without = self._clusters.outputs(removed, x)[0]
        effect = float(effects.scores[0])
        found = shares(self._responses(train), asked, effects.focus, effect, x, y.to(without.device), without, rows)
        order = np.argsort(-found * np.sign(effect), kind="stable")
        return Shares(self.partition.names[number], effects.measured, effect, rows[order], found[order])

    def _responses(self, train: Samples | Dataset[Any] | None) -> Responses:
        """What responses of this target are computed with, its curvature factored once."""
        samples = self._training_set(train)
        if self._response_cache is None:
            settings = self.settings if self.settings.matching == "response" else Settings(seed=self.settings.seed)
            self._response_cache = Responses(self.target, samples, settings)
        return self._response_cache

    def diagnose(self, samples: Question, train: Samples | Dataset[Any] | None = None) -> Diagnosis:
        """Which groups to look at: harmful, useless and mislabelled ones, and those behind each kind of error.

        samples: held-out ones, whose errors are looked into
        train:   the training set, for a datamodel that was loaded and cannot find it again
        """
        verdict = None if self.audited is None else self.audited.sentence
        return diagnosed(self._clusters, self.partition, self._batch(samples), self._training_set(train), verdict)

    def counterfactual(self, remove: Group | Iterable[Group]) -> nn.Module:
        """The network as it would be without some groups, given by number or name: a plain ``nn.Module``."""
        removed = self.partition.removal(remove)
        self._clusters.check_usable(removed)
        return self._clusters.network(removed)

    def outputs(self, x: Tensor, removed: np.ndarray | None = None) -> Tensor:
        """Logits ``(M, n, L)`` under perturbations ``removed (M, K)``, by default each group removed once."""
        if removed is None:
            removed = designs.leave_one_out(len(self.partition))
        return self._clusters.outputs(removed, x)

    def audit(
        self,
        test: Samples | Dataset[Any],
        train: Samples | Dataset[Any] | None = None,
        *,
        retrain: int = 10,
        unions: int | None = None,
        seeds: int = 2,
        validation: Samples | Dataset[Any] | None = None,
        by: Retrain | None = None,
        directory: Path | str | None = None,
        workers: int | None = None,
        seed: int = 0,
        engine: Engine = None,
    ) -> Audit:
        """How far this datamodel can be trusted: its answers against really retraining without some groups.

        test:       samples that are asked about (at most 200 of them are used)
        train:      the training set, for a datamodel that was loaded and cannot find it again
        retrain:    groups to retrain without, drawn from all ranges of predicted effects
        unions:     random unions of half of the groups to retrain without (default: as many)
        seeds:      batch orders of each retraining, the target's own first
        validation: samples whose mean loss is asked about (default: those of ``test``)
        by:         ``by(rows, order)`` trains again without the samples at ``rows`` and returns the network; for
                    targets of a loop of your own
        directory:  where retrained models are kept, so that a killed audit goes on
        workers:    local processes, one thread each (default: as many as cores)
        engine:     where retraining runs, as in ``fit``
        """
        asked = Samples.of(test).few(200, seed)
        valid = asked if validation is None else Samples.of(validation).few(500, seed)
        for samples in (asked, valid):
            self._batch(samples)
        with self._exact(train, by, directory, workers, engine) as exact:
            self.audited = audit(
                self._clusters,
                self.partition,
                exact,
                asked,
                valid,
                groups=retrain,
                unions=unions,
                orders=seeds,
                seed=seed,
            )
        return self.audited

    @contextlib.contextmanager
    def _exact(
        self,
        train: Samples | Dataset[Any] | None,
        by: Retrain | None,
        directory: Path | str | None,
        workers: int | None,
        engine: Engine,
    ) -> Iterator[Retraining]:
        """Retraining, its models kept in ``directory`` or for a while only."""
        with contextlib.ExitStack() as stack:
            kept = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="ddm-exact-"))
            yield Retraining(self.target, self._training_set(train), kept, retrain=by, workers=workers, engine=engine)

    def _verified(
        self, exact: Retraining, chosen: np.ndarray, batch: tuple[Tensor, Tensor], objective: str | Objective | Measure
    ) -> Attribution:
        """Effects of removing the ``chosen`` groups: retraining without each, less retraining with all groups.

        The target itself is not subtracted: it may have been trained with more threads, and rounding then differs.
        """
        seconds = exact.estimate_seconds()
        cost = "" if seconds is None else f" Each takes about {max(seconds, 0.1):.1f} s."
        progress.note(
            f"Verifying by {len(chosen) + 1} retrainings: {len(chosen)} without one group each, and one with all "
            f"groups to compare with.{cost}"
        )
        removed = designs.leave_one_out(len(self.partition))[chosen]
        removals = [NO_ROWS, *group_rows(self.partition, removed)]
        outputs = exact.outputs(removals, 0, batch[0]).to(self.target.device)
        asked, weights = resolve(objective, self.target.loss), np.ones(len(chosen))
        return attributed(asked, outputs[:, None], batch[1], self.partition, removed, weights, chosen, chosen)

    def _training_set(self, train: Samples | Dataset[Any] | None) -> Samples:
        if train is not None:
            samples = Samples.of(train)
            self.check_data(samples, "this")
            return samples
        if self.samples is None:
            self.samples = self._found()
        return self.samples

    def _found(self) -> Samples:
        """The training set that the run of this datamodel names, read again and checked."""
        if self._find is None:
            raise InputError(
                "this run was saved from Python and does not name its data: give the training set as train=…."
            )
        try:
            samples = self._find()
        except InputError as error:
            why = str(error).rstrip(".")
            raise InputError(f"the training set of this run cannot be read: give it as train=… ({why}).") from error
        self.check_data(samples, f"'{self.config['data'] if self.config else ''}'")
        return samples

    @property
    def trust(self) -> str:
        """One line on how far to trust the answers, from the audit if there was one."""
        return trust_line(None if self.audited is None else self.audited.sentence)

    @property
    def described(self) -> Mapping[str, Any] | None:
        """What is known of the training set, so that what differs in another can be told."""
        return self.samples.facts() if self.samples is not None else self._described

    def check_data(self, samples: Samples, what: str) -> None:
        """Refuse another training set than the datamodel was made with, and say what differs."""
        if samples.fingerprint() != self.data:
            raise InputError(
                f"{what} is another training set than the datamodel was made with ({samples.unlike(self.described)}): "
                "give that one."
            )

    def save(self, path: Path | str) -> None:
        """Write a run directory that ``ddm.load`` and the command line read.

        path: a new or empty folder, or a run of the same data and network, which is replaced
        """
        from ddm.runs import store

        store.save(self, named(path))

    def _attribute(
        self,
        models: Counterfactuals,
        partition: Partition,
        removed: np.ndarray,
        batch: tuple[Tensor, Tensor],
        objective: str | Objective | Measure,
        beta: Weights,
        chosen: np.ndarray | None = None,
        fast: bool = False,
    ) -> Attribution:
        """Attribution to the ``chosen`` groups (default: all) from the perturbations ``removed (M, K)``."""
        chosen = np.arange(len(partition)) if chosen is None else chosen
        usable = chosen[models.synset.usable.numpy()[chosen]]
        weights = designs.weights(removed, beta)
        able = np.zeros(len(partition), bool)
        able[usable] = True
        removed = removed & able
        some = removed.any(1)
        if not some.any():
            raise InputError(
                "no group is removed that can be: ask about others, or fit with other settings if matching was stopped."
            )
        weights, removed = weights[some], removed[some]
        x, y = batch
        asked, outputs = resolve(objective, self.target.loss), models.stacks(removed, x, fast=fast)
        return attributed(asked, outputs, y, partition, removed, weights, usable, chosen)

    def _level(self, level: str) -> tuple[Counterfactuals, Partition]:
        if level == "cluster":
            return self._clusters, self.partition
        upper = self.partition.by_class()
        if level != "class":
            raise InputError(f"there is no level '{level}': use cluster or class.")
        if self._classes is None or upper is None:
            raise InputError("these groups cut across classes, so there is no class level.")
        return self._classes, upper

    def _batch(self, question: Question) -> tuple[Tensor, Tensor]:
        return batch_of(question, len(self.partition.classes))

    def _repr_html_(self) -> str:
        sizes = self.partition.sizes
        facts = [
            ("network", f"{type(self.target.network).__name__}, {self.target.flat.size:,} parameters"),
            ("training samples", f"{len(self.partition.groups):,}"),
            ("groups", f"{len(self.partition)}, of {sizes.min()} to {sizes.max()} samples"),
            ("matching", self.settings.matching),
            ("groups that could not be distilled", ", ".join(self.synset.stopped) or "none"),
        ]
        return html.table(("distilled datamodel", ""), facts) + html.paragraph(self.trust)

    def __repr__(self) -> str:
        stopped = len(self.synset.stopped)
        failed = f"; {stopped:,} of the groups could not be distilled" if stopped else ""
        return (
            f"DistilledDatamodel: {type(self.target.network).__name__} trained on {len(self.partition.groups):,} "
            f"samples in {len(self.partition):,} groups, distilled by {self.settings.matching} matching{failed}"
        )
