"""Quick checks of a target, its training set and the user's groups, before the long work of a fit.

Each check is a function of a ``Case`` that returns a ``Finding`` or None, and ``CHECKS`` lists them all. The checks
look at a few hundred samples, so they take seconds. What they can tell is limited: groups in another order, for
example, show only if the groups lie within classes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ddm.curvature.gradients import output_gradients
from ddm.data.samples import Samples, check_two_classes
from ddm.distil.checkpoints import real_checkpoints
from ddm.distil.settings import Settings
from ddm.errors import InputError, is_out_of_memory
from ddm.groups.partition import SMALL_GROUP, Partition, make_partition
from ddm.training.statistics import with_estimated_statistics
from ddm.training.target import Target

_SAMPLES, _FEW_SAMPLES = 256, 32
"""Maximum samples on which the first and the last checkpoint are compared, and every other checkpoint."""

_LARGE = 2**18
"""Networks with more parameters than this are compared on half of the samples, so that checks take seconds."""

_CLEAR = 2.0
"""Standard errors by which the trained network must be better than before training, and than chance."""

_LESS = 0.99
"""Training must bring the loss below this fraction of what it was before."""

_NETWORK_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)
"""What a network raises for inputs that it was not made for."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a target, its samples or its groups.

    sentence: what was found, and what to do
    refused:  True if ``fit`` refuses it, False if ``fit`` warns of it
    """

    sentence: str
    refused: bool = False


def check(
    target: Target,
    samples: Samples | Dataset[Any],
    partition: str | Partition | Sequence[Any] | np.ndarray | None = None,
    settings: Settings | None = None,
) -> list[Finding]:
    """Look for mistakes in what is given to ``fit``, in seconds. ``fit`` calls this first.

    Only the last finding may be one that ``fit`` refuses, because nothing is checked after it.

    partition: the user's own groups, as for ``fit``; groups that ``fit`` itself makes need no check
    settings:  how to distil
    """
    samples = Samples.from_dataset(samples)
    check_two_classes(samples)
    own = None if partition is None or isinstance(partition, str) else make_partition(target, samples, partition, 1)
    case = Case(target, samples, own, settings or Settings())
    findings = []
    for one in CHECKS:
        finding = one(case)
        if finding is not None:
            findings.append(finding)
            if finding.refused:
                break
    return findings


def refuse_or_warn(findings: Sequence[Finding]) -> None:
    """Raise ``InputError`` for a finding that is refused, and warn of every other one."""
    for finding in findings:
        if finding.refused:
            raise InputError(finding.sentence)
        warnings.warn(finding.sentence, stacklevel=3)


class Case:
    """The target, samples and groups of a fit, with values that several checks share, each computed when first used."""

    def __init__(self, target: Target, samples: Samples, partition: Partition | None, settings: Settings) -> None:
        self.target, self.samples, self.partition, self.settings = target, samples, partition, settings
        self.x, self.y = samples.subsample(_SAMPLES if target.flat.size <= _LARGE else _SAMPLES // 2).batch()

    @cached_property
    def checkpoints(self) -> list[int]:
        """The checkpoints at which the fit computes gradients."""
        return real_checkpoints(self.settings, len(self.target.trajectory) - 1)

    @cached_property
    def _estimated(self) -> Target:
        """The target with the running statistics that the fit uses before the last checkpoint."""
        return with_estimated_statistics(self.target, self.samples.subsample(_FEW_SAMPLES), self.checkpoints)

    def logits(self, t: int, x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs at checkpoint ``t``."""
        theta, fixed = (self.target if t == -1 else self._estimated).at(t)
        with torch.no_grad():
            parts = [self.target.flat(theta, fixed, part.to(self.target.device)) for part in x.split(_SAMPLES // 4)]
        return torch.cat(parts).cpu()

    @cached_property
    def first(self) -> Tensor:
        """Logits at θ_0."""
        return self.logits(0, self.x)

    @cached_property
    def last(self) -> Tensor:
        """Logits at θ_τ."""
        return self.logits(-1, self.x)

    @cached_property
    def chance(self) -> float:
        """The cross-entropy of a guess that gives every output the same probability."""
        return math.log(self.last.shape[1])

    @cached_property
    def improvement(self) -> tuple[float, float, float]:
        """Mean loss at θ_0 and at θ_τ, and the mean decrease of the samples' losses in standard errors."""
        before, after = (self._losses(logits) for logits in (self.first, self.last))
        decrease = before - after
        error = float(decrease.std(correction=0)) / math.sqrt(len(decrease))
        return float(before.mean()), float(after.mean()), float(decrease.mean()) / max(error, 1e-12)

    def _losses(self, logits: Tensor) -> Tensor:
        """The loss of each sample ``(b,)``."""
        device = self.target.device
        with torch.no_grad():
            return self.target.loss.each(logits.to(device), self.y.to(device)).cpu().double()

    @cached_property
    def agreement(self) -> tuple[float, float, float]:
        """Share of samples that θ_τ classifies correctly, its expectation by chance, and the excess in standard errors.

        By chance means that predictions keep their frequencies but do not depend on the label (Cohen's kappa).
        """
        predicted, count = self.last.argmax(1), self.last.shape[1]
        right = float((predicted == self.y).double().mean())
        frequencies = [torch.bincount(values, minlength=count) / len(self.y) for values in (predicted, self.y)]
        chance = float(frequencies[0] @ frequencies[1])
        error = math.sqrt(max(chance * (1 - chance), 1 / len(self.y)) / len(self.y))
        return right, chance, (right - chance) / error


Check = Callable[[Case], Finding | None]


def samples_of_training(case: Case) -> Finding | None:
    """Other samples than those that ``ddm.train`` used."""
    if case.target.data in (None, case.samples.fingerprint()):
        return None
    return Finding(
        "the target was trained on other samples than these, or with weights of samples: give the ones it was "
        "trained on.",
        refused=True,
    )


def groups_fit_labels(case: Case) -> Finding | None:
    """Groups within classes that belong to other samples, or to the same samples in another order."""
    partition, labels = case.partition, case.samples.labels.numpy()
    if partition is None or partition.parents is None:
        return None
    wrong = partition.parents[partition.groups] != labels
    if not wrong.any():
        return None
    group = partition.groups[wrong][0]
    return Finding(
        f"group '{partition.names[group]}' has class '{partition.classes[partition.parents[group]]}', but "
        f"{int(wrong.sum()):,} of {len(labels):,} samples have another class than their group: give the groups in the "
        "order of these samples.",
        refused=True,
    )


def groups_named_by_class(case: Case) -> Finding | None:
    """Groups that are named ``class/…`` as ``fit`` names them, but contain samples of other classes."""
    partition, samples = case.partition, case.samples
    if partition is None or partition.parents is not None:
        return None
    classes = [name.rpartition("/")[0] for name in partition.names]
    if not set(classes) <= set(samples.classes):
        return None
    return Finding(
        f"the groups are named after classes, such as '{partition.names[0]}', but contain samples of other classes: "
        "give the groups in the order of these samples."
    )


def groups_large_enough(case: Case) -> Finding | None:
    """Groups of the user's own with few samples."""
    if case.partition is None:
        return None
    small = int((case.partition.sizes < SMALL_GROUP).sum())
    if not small:
        return None
    return Finding(
        f"{small:,} of {len(case.partition):,} groups have fewer than {SMALL_GROUP} samples: merge them, because the "
        "effect of so few is hard to tell from the noise of training, and their synsets reveal single samples."
    )


def network_accepts_samples(case: Case) -> Finding | None:
    """A network that fails on the samples, or has too few outputs for their classes."""
    with _catching() as failure:
        logits = case.last
    if failure:
        return Finding(
            f"the network does not accept inputs of shape {case.samples.shape} ({failure[0]}): give the samples that "
            "it was trained on.",
            refused=True,
        )
    if logits.dim() != 2 or logits.shape[1] <= int(case.samples.labels.max()):
        return Finding(
            f"the network returns outputs of shape {tuple(logits.shape[1:])}, but labels go up to "
            f"{int(case.samples.labels.max())}: give the labels that it was trained on, numbered from 0.",
            refused=True,
        )
    if not bool(logits.isfinite().all()):
        return Finding("the trained network returns NaN or infinite outputs: train it with a lower lr.", refused=True)
    return None


def loss_is_a_mean(case: Case) -> Finding | None:
    """A loss of the user's own that is not a mean over the samples of a batch, or that ``train`` minimised as a sum."""
    loss, device = case.target.loss, case.target.device
    if loss.is_torchs:
        return None
    x, y = case.x[:_FEW_SAMPLES], case.y[:_FEW_SAMPLES]
    reduction = loss.reduction(case.logits(-1, x).to(device), y.to(device))
    if reduction == "mean" or (reduction == "sum" and case.target.recipe is None):  # a recorder sees the sum
        return None
    return Finding(
        "the loss of a batch is not the mean of its samples' losses: give a loss that returns one value for each "
        "sample, or one of torch's losses, such as nn.CrossEntropyLoss(weight=…).",
        refused=True,
    )


def parameters_moved(case: Case) -> Finding | None:
    """Parameters that are the same before and after training, although they can be trained."""
    target = case.target
    first, last = target.state(0), target.state(-1)
    still = [name for name in target.flat.shapes if torch.equal(first[name], last[name])]
    if len(still) == len(target.flat.shapes):
        remedy = (
            "train from other weights or with another lr"
            if target.recipe is not None
            else "make the recorder before the first optimizer step, and take a snapshot after the last one"
        )
        return Finding(f"the parameters are the same at the first and at the last checkpoint: {remedy}.", refused=True)
    still = _with_gradient(case, still) if still else []
    if not still:
        return None
    named = f"'{still[0]}'" if len(still) == 1 else f"'{still[0]}' and {len(still) - 1:,} other parameters"
    return Finding(
        f"training did not change {named}: call requires_grad_(False) on parameters that the optimizer does not train, "
        "before you make the recorder."
    )


def _with_gradient(case: Case, names: Sequence[str]) -> list[str]:
    """Parameters that get a gradient in training mode. A bias before BatchNorm does not, so it may stay as it is."""
    network = copy.deepcopy(case.target.network).train()
    trained = [parameter for name, parameter in network.named_parameters() if name in case.target.flat.shapes]
    x, y = case.x[:_FEW_SAMPLES].to(case.target.theta), case.y[:_FEW_SAMPLES].to(case.target.device)
    with _catching() as failure, torch.random.fork_rng():
        found = torch.autograd.grad(case.target.loss(network(x), y), trained, materialize_grads=True)
    if failure:
        return list(names)
    norms = {name: float(part.norm()) for name, part in zip(case.target.flat.shapes, found, strict=True)}
    return [name for name in names if norms[name] > 1e-5 * max(norms.values())]


def labels_numbered_as_in_training(case: Case) -> Finding | None:
    """Labels that are numbered differently than in training: most samples of one label are predicted as another."""
    if case.target.data is not None:  # ``samples_of_training`` compared them
        return None
    predicted, renamed = case.last.argmax(1), _renamed(case.y, case.last.argmax(1))
    rows = torch.nonzero(renamed != case.y)[:, 0]
    if len(rows) < _FEW_SAMPLES // 2:
        return None
    logits, given, other = case.last[rows], case.y[rows], renamed[rows]
    matched = float((predicted[rows] == other).double().mean())
    if matched < 0.5 + 1 / math.sqrt(len(rows)) or F.cross_entropy(logits, other) > F.cross_entropy(logits, given) / 2:
        return None
    label = int(given.mode().values)
    taken, names = int(other[given == label][0]), case.samples.classes
    return Finding(
        f"the trained network takes most samples labelled '{names[label]}' for "
        f"'{names[taken] if taken < len(names) else taken}', and {matched:.0%} of {len(rows):,} samples for another "
        "label in the same way: number the labels as in training.",
        refused=True,
    )


def _renamed(labels: Tensor, predicted: Tensor) -> Tensor:
    """The labels ``(b,)`` after a one-to-one renaming that agrees with as many predictions as possible."""
    from scipy.optimize import linear_sum_assignment

    found, numbers = torch.cat([labels, predicted]).unique(return_inverse=True)
    table = torch.zeros(len(found), len(found))
    table.index_put_((numbers[: len(labels)], numbers[len(labels) :]), torch.ones(len(labels)), accumulate=True)
    best = torch.as_tensor(linear_sum_assignment(-table.numpy())[1])
    renamed: Tensor = found[best][numbers[: len(labels)]]
    return renamed


def training_did_no_harm(case: Case) -> Finding | None:
    """Samples of which the trained network knows nothing, and on which it is far worse than before training."""
    before, after, clear = case.improvement
    if case.target.data is not None or case.agreement[2] >= _CLEAR or clear > -_CLEAR or after <= 2 * before:
        return None
    return Finding(
        f"training made the network worse on these samples ({_before_and_after(case)}): {_GIVE}.", refused=True
    )


def training_helped(case: Case) -> Finding | None:
    """A network that is hardly better on the samples than before training, or than a guess."""
    before, after, clear = case.improvement
    no_better_than_before = clear < _CLEAR or after > _LESS * before
    no_better_than_guess = case.agreement[2] < _CLEAR or F.cross_entropy(case.last, case.y) > 2 * case.chance
    if not no_better_than_before and not no_better_than_guess:
        return None
    remedy = f"{_GIVE}, or train it longer" if case.target.data is None else "train it longer or with another lr"
    return Finding(
        "the trained network is hardly better on these samples than a guess, or than before training "
        f"({_before_and_after(case)}): {remedy}."
    )


_GIVE = "give the inputs and labels that it was trained on"


def _before_and_after(case: Case) -> str:
    """The facts about the training, for sentences."""
    (right, chance, _), (before, after, _) = case.agreement, case.improvement
    return f"{right:.0%} right where chance gives {chance:.0%}, loss {before:.3g} before training and {after:.3g} after"


_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "normalised to mean 0 and standard deviation 1": lambda x: (x - _mean(x)) / _mean((x - _mean(x)).square()).sqrt(),
    "scaled to 0…1": lambda x: (x - x.min()) / (x.max() - x.min()),
    "scaled to −1…1": lambda x: 2 * (x - x.min()) / (x.max() - x.min()) - 1,
}
"""Scales that inputs often have, each as a function of inputs on another scale."""

_SURELY, _LOWER_LOSS = 4.0, 0.7
"""Minimum gain in accuracy in standard errors, and maximum ratio of losses, at which another scale is that of training.

A network that has learnt little may gain something by another scale, hence both.
"""


def inputs_scaled_as_in_training(case: Case) -> Finding | None:
    """Inputs on another scale than in training: the network does much better after they are scaled."""
    right, loss = case.last.argmax(1) == case.y, float(F.cross_entropy(case.last, case.y))
    if case.target.data is not None or int((~right).sum()) < _SURELY**2:  # with fewer errors, no scale can gain enough
        return None
    for scale, scaled in _SCALES.items():
        with _catching() as failure:
            logits = case.logits(-1, scaled(case.x).nan_to_num())
        if failure or float(F.cross_entropy(logits, case.y)) >= _LOWER_LOSS * loss:
            continue
        better = logits.argmax(1) == case.y
        if _paired_gain(right, better) >= _SURELY:
            return Finding(
                f"the trained network gets {right.double().mean():.0%} of these samples right, but "
                f"{better.double().mean():.0%} if the inputs are {scale}: give the inputs as the network got them in "
                "training."
            )
    return None


def _paired_gain(before: Tensor, after: Tensor) -> float:
    """How many more of the same samples are right, in standard errors (McNemar's test)."""
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return (gained - lost) / math.sqrt(max(gained + lost, 1))


def recorded_from_the_start(case: Case) -> Finding | None:
    """A recorder that was made late: the network has learnt most of its task before the first checkpoint."""
    frequencies = torch.bincount(case.y).double() / len(case.y)
    guess = -float(torch.xlogy(frequencies, frequencies).sum())
    start = float(F.cross_entropy(case.first, case.y))
    if case.target.recipe is not None or start > guess / 2:
        return None
    return Finding(
        f"the network already knew these samples at the first checkpoint (cross-entropy {start:.2g}, a guess has "
        f"{guess:.2g}), so answers cover only the training since then: make the recorder before the first optimizer "
        "step."
    )


def checkpoints_below_start(case: Case) -> Finding | None:
    """A checkpoint whose loss is far above that of the start, so that its gradients dominate all others."""
    x, y = case.x[:_FEW_SAMPLES], case.y[:_FEW_SAMPLES]
    limit = 2 * max(float(F.cross_entropy(case.first[: len(y)], y)), case.chance)
    for t in case.checkpoints[1:-1]:
        loss = float(F.cross_entropy(case.logits(t, x), y))
        if not loss <= limit:
            return Finding(
                f"checkpoint {t} of {case.checkpoints[-1]} has a cross-entropy of {loss:.3g}, far above "
                f"{limit / 2:.3g} at the start, and will dominate the answers: take snapshots at other steps, or train "
                "with a lower lr."
            )
    return None


def network_accepts_noise(case: Case) -> Finding | None:
    """A network that fails on the noise images of which synsets are made."""
    if case.settings.start_images != "noise":
        return None
    target = case.target
    images = torch.randn(2, *case.samples.shape, generator=torch.Generator().manual_seed(0)).to(target.theta)
    with _catching() as failure:
        logits = case.logits(-1, images)
        rows = output_gradients(target, target.theta, target.fixed, images, torch.ones_like(logits[:, None]).to(images))
    if not failure and bool(logits.isfinite().all()) and bool(rows.isfinite().all()):
        return None
    why = failure[0] if failure else "its outputs or gradients are not finite"
    return Finding(
        f"the network does not work on noise images, of which synsets are made ({why}): choose init='real', which "
        "starts from training samples.",
        refused=True,
    )


CHECKS: list[Check] = [
    samples_of_training,
    groups_fit_labels,
    groups_named_by_class,
    groups_large_enough,
    network_accepts_samples,
    loss_is_a_mean,
    parameters_moved,
    labels_numbered_as_in_training,
    inputs_scaled_as_in_training,
    training_did_no_harm,
    training_helped,
    recorded_from_the_start,
    checkpoints_below_start,
    network_accepts_noise,
]
"""Every check, in the order in which they run."""


@contextlib.contextmanager
def _catching() -> Iterator[list[str]]:
    """Collect the message of an error that a network raises in this block."""
    failure: list[str] = []
    try:
        yield failure
    except _NETWORK_ERRORS as error:
        if is_out_of_memory(error):
            raise
        failure.append(" ".join(str(error).split()))


def _mean(x: Tensor) -> Tensor:
    """Mean per channel of inputs ``(b, C, ...)``, in their number of dimensions."""
    return x.mean([axis for axis in range(x.dim()) if axis != 1], keepdim=True)
