"""Quick checks of a target, its training set and the user's groups, before the long work of a fit.

Each check is a function of a ``Case`` that returns a ``Finding`` or None, and ``CHECKS`` lists them all. The checks
look at a few hundred samples, so they take seconds. What they can tell is limited: groups in another order, for
example, show only if the groups lie within classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from ddm.data.samples import Samples, check_two_classes
from ddm.distil.checks import data, training
from ddm.distil.checks.case import Case, Finding
from ddm.distil.settings import Settings
from ddm.errors import InputError
from ddm.groups.partition import PartitionLike, make_partition
from ddm.training.target import Target

Check = Callable[[Case], Finding | None]

CHECKS: list[Check] = [
    data.samples_of_training,
    data.groups_fit_labels,
    data.groups_named_by_class,
    data.groups_large_enough,
    data.groups_small_enough,
    data.network_accepts_samples,
    training.loss_is_a_mean,
    training.parameters_moved,
    data.labels_numbered_as_in_training,
    data.inputs_scaled_as_in_training,
    training.training_did_no_harm,
    training.training_helped,
    training.recorded_from_the_start,
    training.checkpoints_below_start,
    data.network_accepts_noise,
]
"""Every check, in the order in which they run."""


def check(
    target: Target,
    samples: Samples | Dataset[Any],
    partition: PartitionLike | None = None,
    settings: Settings | None = None,
) -> list[Finding]:
    """Look for mistakes in what is given to ``fit``, in seconds. ``fit`` calls this first.

    Only the last finding may be one that ``fit`` refuses, because nothing is checked after it.

    partition: the user's own groups, as for ``fit``; groups that ``fit`` itself makes need no check
    settings:  how to distil
    """
    samples = Samples.from_dataset(samples, task=target.task)
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
