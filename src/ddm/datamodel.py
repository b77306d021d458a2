"""DistilledDatamodel: distil the influence of every group once with ``fit``, then ask questions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddm.answers.attribution import Attribution, attribute
from ddm.answers.diagnosis import Diagnosis, diagnose
from ddm.answers.objectives import ObjectiveLike, resolve
from ddm.answers.question import Batch, Question, batch_of
from ddm.answers.sample_scores import find_scores
from ddm.answers.shares import Shares, find_shares
from ddm.answers.trace import Trace, trace, verify_trace
from ddm.compute.engine import Engine
from ddm.compute.files import output_path
from ddm.compute.once import Once
from ddm.compute.validation import check_upper_bounds
from ddm.counterfactual import designs
from ddm.counterfactual.designs import Weights
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.reach import beyond_reach
from ddm.counterfactual.whole_classes import answering_models
from ddm.data.inputs import X
from ddm.data.reading import Collate
from ddm.data.samples import Samples
from ddm.data.training_set import TrainingSet
from ddm.distil import Distilled, Settings, changed, distil, distil_kept
from ddm.distil import private as private_settings
from ddm.distil.checks import check, refuse_or_warn
from ddm.distil.kept import KeptResponses
from ddm.distil.plan import settings_within
from ddm.distil.response.solve import Responses
from ddm.distil.synset import Synset
from ddm.errors import InputError, is_out_of_memory
from ddm.groups.features import Features
from ddm.groups.partition import Group, Partition, PartitionLike, make_partition
from ddm.networks.factory import Factory, FactoryLike, checked_factory
from ddm.plots import html
from ddm.training.target import Target
from ddm.truth.audit import Audit, audit, trust_line
from ddm.truth.effects import shift
from ddm.truth.evidence import Evidence, Removal
from ddm.truth.posterior import GENERAL
from ddm.truth.refined import RefinedModels
from ddm.truth.refinement import Refinement, announce, learn, plan
from ddm.truth.retraining import Retrain, Retraining, open_retraining

_TYPICAL = 300
"""Training samples on whose outputs the posterior is estimated."""


class DistilledDatamodel:
    """Predicts the target as if it had been trained without some groups, and how its behaviour would change.

    partition:    the groups
    synset:       the synset of every group; None if it is still to be distilled
    class_synset: the synset of every class; None if groups cut across classes, or without a synset
    settings:     how the groups were distilled
    data:         fingerprint of the training set
    config:       the config that replays the run, if the command line made it
    samples:      the training set, if it is loaded; a run directory does not contain it
    audited:      the latest audit
    described:    facts about the training set, for a datamodel whose training set is not loaded
    find:         loads the training set when it is first needed, for a run that names its data
    responses:    the kept responses, from which answers come; None if answers come from the synset
    evidence:     the retrained networks that correct the answers; None before ``refine`` or ``audit``
    factory:      names the code that builds a network of the user's own; None if saved runs do not name it
    """

    def __init__(
        self,
        target: Target,
        partition: Partition,
        synset: Synset | None,
        class_synset: Synset | None,
        settings: Settings,
        data: str,
        config: dict[str, Any] | None = None,
        samples: Samples | None = None,
        audited: Audit | None = None,
        described: Mapping[str, Any] | None = None,
        find: Callable[[], Samples] | None = None,
        responses: KeptResponses | None = None,
        evidence: Evidence | None = None,
        factory: Factory | None = None,
    ) -> None:
        self.distilled = Distilled(synset, class_synset, responses)
        self.distilled.check_made_for(target.origin(data))
        self.target, self.partition, self.settings, self.data = target, partition, settings, data
        self.config, self.audited, self.factory = config, audited, factory
        self.training_set = TrainingSet(data, samples, described, find, (config or {}).get("data") or "", target.task)
        self._unrefined = answering_models(target, partition, self.distilled)
        self._use(evidence)
        self._response_cache: Once[Responses] = Once()

    @classmethod
    def fit(
        cls,
        target: Target,
        samples: Samples | Dataset[Any],
        clusters: int = 10,
        *,
        partition: PartitionLike = "kmeans",
        features: Features = None,
        collate: Collate | None = None,
        settings: Settings | None = None,
        private: bool = False,
        parameters: str | Sequence[str] | None = None,
        budget: str | float | None = None,
        directory: Path | str | None = None,
        engine: Engine = None,
        config: dict[str, Any] | None = None,
        on_stage: Callable[[str], object] | None = None,
        **changes: Any,
    ) -> DistilledDatamodel:
        """Split the training set into groups and distil the influence of each.

        partition: kmeans (``clusters`` per class), class, sequence, a group for each sample (a word, number or date),
                   a mapping of names to positions in the training set, which may overlap, or a ``Partition``
        features:  inputs of k-means; by default the target's penultimate layer
        collate:   makes a batch of samples, as ``DataLoader(collate_fn=…)`` takes it, for a dataset that needs one
        settings:  how to distil; ``changes`` replace single settings, e.g. ``ipc=2, matching="forward"``
        private:   start from noise and clip the gradient of each sample, so that a synset reveals less about it
        parameters: what the datamodel moves: ``head`` for the last linear layer alone, or names of parameters or
                   patterns such as ``layer4.*`` (default: all that were trained). Cheap for large networks, and right
                   as far as the other layers do not depend on the group; retraining trains all layers as before
        budget:    maximum time, such as ``"10 min"`` or seconds. The fit leaves out the synset, then uses fewer
                   checkpoints, samples per group and curvature rows, until its plan fits, and says what it chose
        directory: where finished parts are saved, so that a killed fit resumes
        engine:    where independent tasks run: serial, processes, dask://HOST:PORT, ray or ray://HOST:PORT. The result
                   is the same bit for bit (default: this process for little work, else processes)
        config:    the config that replays the run; saved with the datamodel
        on_stage:  called with the name of each stage (partition, matching) when it ends
        """
        samples = Samples.from_dataset(samples, task=target.task, collate=collate)
        end_stage = on_stage or (lambda stage: None)
        settings = changed(settings or Settings(), changes)
        settings = private_settings(settings) if private else settings
        target = target if parameters is None else target.displacing(parameters, samples.batch([0])[0])
        refuse_or_warn(check(target, samples, partition, settings))
        if budget is not None:
            settings = settings_within(budget, target, samples, clusters, partition, features, settings, engine)
        groups = make_partition(target, samples, partition, clusters, features, settings.seed)
        end_stage("partition")
        parts = Path(directory) if directory is not None else None
        found = distil(target, samples, groups, settings, parts, engine)
        end_stage("matching")
        synsets, data = (found.synset, found.class_synset), samples.fingerprint()
        return cls(target, groups, *synsets, settings, data, config, samples, responses=found.responses)

    def _use(self, evidence: Evidence | None) -> None:
        """Answer from the models that this evidence corrects."""
        if evidence is not None:
            evidence.check_made_for(self.target.origin(self.data), self.partition.names)
            evidence.check_size(self.target)
        self.evidence = evidence
        self._clusters, self._classes = self._refined(evidence), self._unrefined[1]

    def _refined(self, evidence: Evidence | None, order: int = 0) -> Models:
        """The models without some groups, corrected by evidence."""
        models = self._unrefined[0]
        return models if evidence is None else RefinedModels(models, evidence, self.partition.parents, order)

    def _without(self, keys: Sequence[Removal], samples: Samples) -> Models:
        """The models without some groups, as they would be if these retrainings of ``samples`` had not been made."""
        left = None if self.evidence is None else self.evidence.without(keys)
        if left is not None:
            left, _ = learn(self._unrefined[0], None, left, _some_inputs(samples))
        return self._refined(left)

    @property
    def synset(self) -> Synset:
        """The synset of every group; refused if it is still to be distilled."""
        return self.distilled.made_synset

    @property
    def class_synset(self) -> Synset | None:
        """The synset of every class; None if groups cut across classes, or without a synset."""
        return self.distilled.class_synset

    @property
    def responses(self) -> KeptResponses | None:
        """The kept responses, from which answers come; None if answers come from the synset."""
        return self.distilled.responses

    def distil(self, train: Samples | Dataset[Any] | None = None) -> Synset:
        """Distil the synset from the kept responses, unless there is one already.

        train: the training set, for a loaded datamodel that cannot find it
        """
        if self.distilled.synset is None and self.responses is not None:
            samples = self.training_set.get(train)
            self.distilled = distil_kept(self.target, samples, self.partition, self.settings, self.responses)
        return self.synset

    def attribute(
        self,
        question: Question,
        objective: ObjectiveLike = "prediction",
        *,
        level: str = "cluster",
        design: str | np.ndarray = "leave-one-out",
        perturbations: int | None = None,
        beta: Weights = "uniform",
        seed: int = 0,
        fast: bool = False,
        general: bool = False,
    ) -> Attribution:
        """The effect of removing each group on ``objective``, for the samples of a question.

        After ``refine`` or ``audit`` every effect of leave-one-out has a 90 % interval, ``low`` to ``high``.

        level:  cluster, or class
        design: leave-one-out, random (``perturbations`` unions of half of the groups, default 4 K), or an array
                p ``(M, K)`` that is 1 where a group stays and 0 where it is removed. A perturbation that removes all
                groups of a class has the effect of the class, which is not the sum of the groups' effects
        beta:   weight of each perturbation: uniform, removed (fewer removed groups count more), or a callable of p
        fast:   compute logits from one Jacobian of the target instead of from every model: the same to first order
        general: ask about models trained like this one in any batch order, instead of about this run
        """
        models, partition = self._level(level, general)
        removed = designs.make(design, len(partition), perturbations, seed)
        batch = self._batch(question)
        found = attribute(models, partition, removed, batch, objective, beta, fast=fast)
        return replace(found, doubt=self._doubt("rho" if len(batch[0]) == 1 else "rho_global"))

    def trace(
        self,
        question: Question,
        objective: ObjectiveLike = "prediction",
        *,
        full: bool = False,
        verify: int = 0,
        train: Samples | Dataset[Any] | None = None,
        by: Retrain | None = None,
        directory: Path | str | None = None,
        workers: int | None = None,
        engine: Engine = None,
    ) -> Trace:
        """The most responsible class and then its most responsible cluster; ``full`` searches every group instead.

        verify: number of best candidates to verify: retrain without each of them, and once with all groups to compare
                with, and answer with the measured effects. The cost is printed before it starts; ``train``, ``by``,
                ``directory``, ``workers`` and ``engine`` are those of ``audit``
        """
        batch = self._batch(question)
        found = trace(self._clusters, self.partition, batch, objective, None if full else self._classes)
        found = replace(found, clusters=replace(found.clusters, doubt=self._doubt("oracle_fraction")))
        if not verify:
            return found
        samples = self.training_set.get(train)
        with open_retraining(self.target, samples, directory, by, workers, engine) as retraining:
            verified = verify_trace(found, verify, retraining, self.partition, batch, objective)
            assert verified.verified is not None
            removed = np.stack([self.partition.mask(name) for name in verified.verified.names])
            self._learn(retraining, removed, np.zeros(len(removed), dtype=np.int64))
        return verified

    def refine(
        self,
        retrain: int = 20,
        *,
        seconds: float | None = None,
        by: Retrain | None = None,
        question: Question | None = None,
        general: bool = False,
        train: Samples | Dataset[Any] | None = None,
        directory: Path | str | None = None,
        workers: int | None = None,
        seed: int = 0,
        engine: Engine = None,
    ) -> Refinement:
        """Retrain without some groups. Every retraining checks this datamodel and improves it.

        A group that was left out alone has its true effect from then on, effects of all other groups come closer to
        the truth, and every effect has an interval. Called again, it goes on: retrainings add up.

        retrain:   number of retrainings without some groups; 0 uses those that ``directory`` holds already
        seconds:   retrain for about this long instead
        by:        ``by(rows, order)`` retrains without the samples at ``rows`` and returns the network; needed for
                   targets of your own training loop
        question:  the samples whose outputs matter: groups that change them most are left out alone
                   (default: training samples)
        general:   retrain in batch orders that were not used yet, for questions about the model in general
        train:     the training set, for a loaded datamodel that cannot find it
        directory: where retrained models are saved, so that a killed refinement resumes
        workers:   local processes, one thread each (default: number of cores)
        seed:      random seed of the unions
        engine:    where retraining runs, as in ``fit``
        """
        check_upper_bounds(retrainings=retrain)
        samples = self.training_set.get(train)
        asked = _some_inputs(samples) if question is None else self._batch(question)[0]
        with open_retraining(self.target, samples, directory, by, workers, engine) as retraining:
            known = [] if self.evidence is None else self.evidence.keys
            retrain = retrain if seconds is None else retraining.affordable(seconds)
            new = plan(self.partition, self._importance(asked), retrain, known, general=general, seed=seed)
            announce(retraining, self.partition, new)
            requests = [*new, *retraining.made(self.partition)]
            if not requests:
                raise InputError("there is no retrained model yet: retrain at least once (--retrain).")
            removed, orders = (np.array(part) for part in zip(*requests, strict=True))
            return self._learn(retraining, removed, orders)

    def _importance(self, x: X) -> np.ndarray:
        """How far the removal of each group is predicted to move the outputs of inputs ``x``, ``(K,)``."""
        stacks = self._clusters.stacks(designs.leave_one_out(len(self.partition)), x)
        base, *outputs = (logits for stack in stacks for logits in stack)
        return np.array([float(shift(found, base, self.target.task).mean()) for found in outputs])

    def _learn(self, retraining: Retraining, removed: np.ndarray, orders: np.ndarray) -> Refinement:
        """Retrain without ``removed (M, K)`` in batch orders ``(M,)``, and answer with the help of these networks."""
        new = Evidence.collect(retraining, self.partition, removed, orders, self.data)
        evidence, refinement = learn(self._unrefined[0], self.evidence, new, _some_inputs(retraining.samples))
        self._use(evidence)
        return refinement

    def shares(
        self,
        question: Question,
        group: Group | None = None,
        objective: ObjectiveLike = "prediction",
        *,
        output: str | None = None,
        train: Samples | Dataset[Any] | None = None,
    ) -> Shares:
        """The share of each sample of a group in the group's effect; the shares add up to the effect.

        group:  number or name; by default the group that ``trace`` returns
        output: the value in question, for objectives with one value per class
        train:  the training set, for a loaded datamodel that cannot find it
        """
        if group is None:
            group = self.trace(question, objective).group
        found = find_shares(
            self._clusters,
            self.partition,
            self.partition.index(group),
            self._batch(question),
            objective,
            output,
            lambda: self._responses(train),
        )
        return replace(found, samples=self.training_set.get(train))  # cached responses may know other names of them

    def scores(
        self,
        question: Question,
        objective: ObjectiveLike = "loss",
        *,
        output: str | None = None,
        train: Samples | Dataset[Any] | None = None,
    ) -> np.ndarray:
        """The score of every training sample for every sample asked about, ``(n_train, n_test)``.

        A score is the effect of removing the training sample on the objective of the single test sample, to first
        order. With the default, the loss, *positive = the training sample helps*: the loss rises without it. This is
        also the sign of dattri, TRAK and most others. With an objective that is better when larger, such as
        ``logits``, a sample that supports the value has a negative score: change the sign for other tools.

        The cost is one solve for each test sample, and one gradient of each training sample at each checkpoint.
        The result takes 4 bytes for each pair of samples.

        output: the value in question, for objectives with one value per class; None is the predicted class
        train:  the training set, for a loaded datamodel that cannot find it
        """
        batch, resolved = self._batch(question), resolve(objective, self.target.task)
        classes = self.partition.classes
        if output is not None and output not in classes:
            raise InputError(f"there is no value '{output}': use one of {', '.join(classes)}.")
        number = None if output is None else classes.index(output)
        return find_scores(self._responses(train), batch, resolved, number)

    def _responses(self, train: Samples | Dataset[Any] | None) -> Responses:
        """The responses of the target, cached because factoring its curvature is slow."""
        samples = self.training_set.get(train)

        def prepare() -> Responses:
            settings = self.settings if self.settings.matching == "response" else Settings(seed=self.settings.seed)
            responses = Responses(self.target, samples, settings)
            # A synset of reverse matching, or of an older version, has no chosen damping.
            responses.curvature.set_damping(self.distilled.damping.get("scale", 1.0))
            return responses

        return self._response_cache.get(prepare)

    def diagnose(self, samples: Question, train: Samples | Dataset[Any] | None = None) -> Diagnosis:
        """Harmful, useless and mislabelled groups, and the groups behind each kind of error.

        samples: held-out samples, whose errors are explained
        train:   the training set, for a loaded datamodel that cannot find it
        """
        verdict = None if self.audited is None else self.audited.sentence
        found = diagnose(self._clusters, self.partition, self._batch(samples), self.training_set.get(train), verdict)
        return replace(found, doubt=self._doubt("rho_global"))

    def counterfactual(
        self, remove: Group | Iterable[Group] | None = None, *, weights: Mapping[Group, float] | None = None
    ) -> nn.Module:
        """The network as it would be without some groups, or with other weights of groups: a plain ``nn.Module``.

        remove:  groups to leave out, by number or name
        weights: how much each sample of a group counts, such as ``{"3/7": 0.5, "1/2": 2}``. 0 removes the group,
                 1 leaves it as it is. Groups that are not named keep the weight 1.

        A removal that is beyond the reach of the datamodel (see ``beyond``) raises a warning.
        """
        if remove is not None and weights is None:
            removed = self.partition.removal(remove)
        elif weights is not None and remove is None:
            removed = self.partition.reweighting(weights)
        else:
            raise InputError("give either the groups to remove or the weights of groups.")
        self._clusters.check_usable(removed)
        if (beyond := beyond_reach(self.partition, removed[None])) is not None:
            warnings.warn(beyond, stacklevel=2)
        return self._clusters.network(removed)

    def beyond(self, remove: Group | Iterable[Group]) -> str | None:
        """A sentence that says why the model without these groups is rough; None if it is within reach.

        It is rough if the removal takes several whole classes, most of one class, or much of the training data.
        """
        return beyond_reach(self.partition, self.partition.removal(remove)[None])

    @property
    def models(self) -> Models:
        """The models without some groups, from which all answers come."""
        return self._clusters

    def outputs(self, x: X, removed: np.ndarray | None = None) -> Tensor:
        """Logits ``(M, n, L)`` under perturbations ``removed (M, K)``, by default each group removed once.

        removed: a mask that is True where a group is removed, or 1 − weight for each group
        """
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
        """Measure how far to trust this datamodel: compare its predictions with retraining without some groups.

        test:       samples whose predictions are compared (at most 200 of them)
        train:      the training set, for a loaded datamodel that cannot find it
        retrain:    number of groups to retrain without, drawn from all ranges of predicted effects
        unions:     number of random unions of half of the groups to retrain without (default: ``retrain``)
        seeds:      batch orders of each retraining, the target's own first
        validation: samples whose mean loss is compared (default: ``test``)
        by:         ``by(rows, order)`` retrains without the samples at ``rows`` and returns the network; needed for
                    targets of your own training loop
        directory:  where retrained models are saved, so that a killed audit resumes
        workers:    local processes, one thread each (default: number of cores)
        seed:       random seed
        engine:     where retraining runs, as in ``fit``
        """
        samples = self.training_set.get(train)
        tested = self._samples(test).subsample(200, seed)
        validated = tested if validation is None else self._samples(validation).subsample(500, seed)
        for held_out in (tested, validated):
            self._batch(held_out)
        with open_retraining(self.target, samples, directory, by, workers, engine) as retraining:
            self.audited = audit(
                self._unrefined[0],
                self.partition,
                retraining,
                tested,
                validated,
                groups=retrain,
                unions=unions,
                orders=seeds,
                seed=seed,
                refined=lambda keys: self._without(keys, samples),
            )
            singles = np.stack([self.partition.mask(name) for name in self.audited.groups])
            orders = np.repeat(np.arange(seeds), len(singles))
            self._learn(retraining, np.tile(singles, (seeds, 1)), orders)
        return self.audited

    def _doubt(self, figure: str) -> str | None:
        """Why answers that rest on this figure of the audit are not to be trusted; None if they are."""
        return None if self.audited is None else self.audited.doubt(figure)

    @property
    def trust(self) -> str:
        """One line on how far to trust the answers, from the latest audit."""
        return trust_line(None if self.audited is None else self.audited.sentence)

    @property
    def samples(self) -> Samples | None:
        """The training set, if it is loaded."""
        return self.training_set.samples

    def save(self, path: Path | str, factory: FactoryLike | None = None) -> None:
        """Write a run directory that ``ddm.load`` and the command line read.

        path:    a new or empty folder, or a run of the same data and network, which is replaced
        factory: what builds a network of your own: ``"package.module:make"``, or that with keyword arguments,
                 ``("package.module:Net", {"width": 8})``. The run stores the name, and whoever opens the run gives it
                 again: ``ddm.load(path, factory="package.module:make")`` or ``--factory package.module:make``
        """
        from ddm.runs import store

        if factory is not None:
            self.factory = checked_factory(factory, self.target.network)
        store.save(self, output_path(path))

    def _level(self, level: str, general: bool = False) -> tuple[Models, Partition]:
        if level == "cluster":
            return self._refined(self.evidence, GENERAL) if general else self._clusters, self.partition
        classes = self.partition.by_class()
        if level != "class":
            raise InputError(f"there is no level '{level}': use cluster or class.")
        if self._classes is None or classes is None:
            raise InputError("these groups cut across classes, so there is no class level.")
        return self._classes, classes

    def _samples(self, dataset: Samples | Dataset[Any]) -> Samples:
        """Held-out samples, with the labels of the target's task."""
        return Samples.from_dataset(dataset, task=self.target.task)

    def _batch(self, question: Question) -> Batch:
        x, labels = batch_of(question, self.target.task, len(self.partition.classes))
        try:
            self.target.outputs(x[:1])
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())
            raise InputError(
                f"the network does not accept these inputs ({reason}): ask with inputs like those of the training."
            ) from None
        return x, labels

    def _repr_html_(self) -> str:
        sizes = self.partition.sizes
        facts = [
            ("network", f"{type(self.target.network).__name__}, {self.target.flat.size:,} parameters"),
            ("training samples", f"{len(self.partition.groups):,}"),
            ("groups", f"{len(self.partition)}, of {sizes.min()} to {sizes.max()} samples"),
            ("matching", self.settings.matching),
            ("groups that could not be distilled", ", ".join(self.distilled.stopped) or "none"),
        ]
        return html.table(("distilled datamodel", ""), facts) + html.paragraph(self.trust)

    def __repr__(self) -> str:
        stopped = len(self.distilled.stopped)
        failed = f"; {stopped:,} of the groups could not be distilled" if stopped else ""
        return (
            f"DistilledDatamodel: {type(self.target.network).__name__} trained on {len(self.partition.groups):,} "
            f"samples in {len(self.partition):,} groups, distilled by {self.settings.matching} matching{failed}"
        )


def _some_inputs(samples: Samples) -> X:
    """Inputs of some training samples, whose outputs stand for all in the posterior."""
    return samples.subsample(_TYPICAL, 0).batch()[0]
