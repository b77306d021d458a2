"""Checks of the samples and the user's groups: are they those of the training, and does the network accept them?"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.curvature.gradients import output_gradients
from ddm.distil.checks.case import FEW_SAMPLES, Case, Finding, catching
from ddm.distil.response.bank import draw_bank
from ddm.groups.partition import SMALL_GROUP

_MOST = 0.5
"""Fraction of the samples above which a group is too large."""


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
    if partition is None or partition.parents is None or not case.samples.has_classes:
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


def groups_small_enough(case: Case) -> Finding | None:
    """A group of the user's own with most of the data."""
    if case.partition is None:
        return None
    shares = case.partition.shares
    largest = int(shares.argmax())
    if shares[largest] <= _MOST:
        return None
    return Finding(
        f"group '{case.partition.names[largest]}' holds {shares[largest]:.0%} of the samples: split it, because the "
        "effect of so much data is far beyond what a datamodel can predict."
    )


def network_accepts_samples(case: Case) -> Finding | None:
    """A network that fails on the samples, or has too few outputs for their classes."""
    with catching() as failure:
        logits = case.last
    if failure:
        return Finding(
            f"the network does not accept inputs of shape {case.samples.shape} ({failure[0]}): give the samples that "
            "it was trained on.",
            refused=True,
        )
    task = case.target.task
    if task.has_classes != case.samples.has_classes:
        return Finding(
            f"the target was trained for {task.kind}, but these labels are of another kind: give the samples that it "
            "was trained on, or the task of the training (task=…).",
            refused=True,
        )
    if not task.has_classes:
        why = task.check_labels(case.samples.labels, logits.shape[1])
        return None if why is None else Finding(f"the labels do not fit the network: {why}.", refused=True)
    if logits.dim() != 2 or logits.shape[1] <= int(case.samples.labels.max()):
        return Finding(
            f"the network returns outputs of shape {tuple(logits.shape[1:])}, but labels go up to "
            f"{int(case.samples.labels.max())}: give the labels that it was trained on, numbered from 0.",
            refused=True,
        )
    if not bool(logits.isfinite().all()):
        return Finding("the trained network returns NaN or infinite outputs: train it with a lower lr.", refused=True)
    return None


def labels_numbered_as_in_training(case: Case) -> Finding | None:
    """Labels that are numbered differently than in training: most samples of one label are predicted as another."""
    if case.target.data is not None or not case.target.task.has_classes:  # ``samples_of_training`` compared them
        return None
    predicted, renamed = case.last.argmax(1), _renamed(case.y, case.last.argmax(1))
    rows = torch.nonzero(renamed != case.y)[:, 0]
    if len(rows) < FEW_SAMPLES // 2:
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


_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "normalised to mean 0 and standard deviation 1": lambda x: (x - _mean(x)) / _mean((x - _mean(x)).square()).sqrt(),
    "scaled to 0…1": lambda x: (x - x.min()) / (x.max() - x.min()),
    "scaled to −1…1": lambda x: 2 * (x - x.min()) / (x.max() - x.min()) - 1,
}
"""Scales that inputs often have, each as a function of inputs on another scale."""

_MAX_RATIO, _MAX_SHIFT = 1.5, 0.5
"""Maximum ratio of standard deviations, and difference of means in standard deviations, that augmentation explains."""

_SURELY, _LOWER_LOSS = 4.0, 0.7
"""Minimum gain in accuracy in standard errors, and maximum ratio of losses, at which another scale is that of training.

A network that has learnt little may gain something by another scale, hence both.
"""


def inputs_scaled_as_in_training(case: Case) -> Finding | None:
    """Inputs on another scale than the recorder saw, or than one with which the network does much better."""
    return _other_moments(case) or _better_scale(case)


def _other_moments(case: Case) -> Finding | None:
    """Another mean or standard deviation than those of the inputs that the recorder saw."""
    seen = case.target.inputs
    if seen is None or not isinstance(case.x, Tensor):
        return None
    mean, deviation = float(case.x.mean()), float(case.x.std())
    least, most = sorted((seen.deviation, deviation))
    if most <= _MAX_RATIO * least and abs(mean - seen.mean) <= _MAX_SHIFT * most:
        return None
    return Finding(
        f"these inputs have mean {mean:.3g} and standard deviation {deviation:.3g}, but in training the network got "
        f"inputs with mean {seen.mean:.3g} and standard deviation {seen.deviation:.3g}: give the inputs as the network "
        "got them in training."
    )


def _better_scale(case: Case) -> Finding | None:
    """A scale with which the network does much better."""
    if not isinstance(case.x, Tensor) or not case.target.task.has_classes:
        return None
    right, loss = case.last.argmax(1) == case.y, float(F.cross_entropy(case.last, case.y))
    if case.target.data is not None or int((~right).sum()) < _SURELY**2:  # with fewer errors, no scale can gain enough
        return None
    for scale, scaled in _SCALES.items():
        with catching() as failure:
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


def _mean(x: Tensor) -> Tensor:
    """Mean per channel of inputs ``(b, C, ...)``, in their number of dimensions."""
    return x.mean([axis for axis in range(x.dim()) if axis != 1], keepdim=True)


def network_accepts_noise(case: Case) -> Finding | None:
    """A network that fails on the noise images, or other drawn inputs, of which synsets are made."""
    if case.settings.start_images != "noise" or case.settings.synset is False:
        return None
    target = case.target
    images = draw_bank(case.samples, 2, 0).to(target.theta)
    with catching() as failure:
        logits = case.logits(-1, images)
        rows = output_gradients(
            target, target.theta, target.fixed, images, torch.ones_like(logits[:, None]).to(target.theta)
        )
    if not failure and bool(logits.isfinite().all()) and bool(rows.isfinite().all()):
        return None
    why = failure[0] if failure else "its outputs or gradients are not finite"
    return Finding(
        f"the network does not work on {'noise images' if case.has_images else 'inputs drawn column by column'}, of "
        f"which synsets are made ({why}): choose init='real', which starts from training samples, or synset=False, "
        "which answers from kept responses.",
        refused=True,
    )
