"""The stored truth of a problem: the outputs of retrained models, in a file that scores methods without retraining.

NAME.safetensors holds, for n training samples in K groups and L classes,

    groups   (n,)                  int16    the group of each training sample
    parents  (K,)                  int16    the class of each group; −1 where samples have no class
    removed  (R, K)                uint8    1 for removed groups: none, every single group, pairs, random unions
    base     (O, m + v, L)         float16  logits of m test and v validation samples with all groups, by batch order
    changes  (O, R − 1, m + v, L)  float16  the logits after each other removal, minus ``base``

Half precision keeps 11 binary digits. Effects are changes, often much smaller than the logits, so changes are stored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.bench.setup import Setup, short_hash
from ddm.compute.tensors import read_intact, read_metadata, write_tensors
from ddm.compute.validation import are_unique_names, check_fields
from ddm.data.tasks import Task, task_of
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.truth.effects import EffectQuery, Effects, effects_of_outputs

_FORMAT = "ddm truth 1"

_ADVICE = "restore it, or delete it and run ddm bench truths again"

_NO_CLASS = -1
"""The class of groups of samples without classes."""

_SAME_TARGET = 1e-3
"""Mean absolute difference of probabilities up to which two trained networks count as the same target.

On MNIST half precision changes probabilities by a hundredth of it, and another batch order by 5 to 12 times as much."""


@dataclass(frozen=True)
class Facts:
    """The metadata of a stored truth.

    setup:    the problem's setup, without the location of its files and DDM's settings
    names:    the name of each group
    classes:  the name of each class
    data:     a hash of each split of the data
    target:   the fingerprint of the target
    tests:    m, the number of test samples
    accuracy: the target's accuracy on the whole test split; of a regression R²
    seconds:  seconds of one training on one thread
    versions: versions of the packages that retrained
    """

    setup: Mapping[str, Any]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    data: Mapping[str, str]
    target: str
    tests: int
    accuracy: float
    seconds: float
    versions: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class StoredTruth:
    """The outputs of models that were retrained without groups, for one problem.

    facts:     the metadata
    partition: the groups that were removed
    removed:   each removal as booleans ``(R, K)``: none, every single group, pairs, unions
    logits:    ``(O, R, m + v, L)``, by batch order and removal; order 0 is the target's own
    """

    facts: Facts
    partition: Partition
    removed: np.ndarray
    logits: Tensor

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        parents = self.partition.parents
        parents = np.full(len(self.partition), _NO_CLASS) if parents is None else parents
        tensors = {
            "groups": torch.as_tensor(self.partition.groups).to(torch.int16),
            "parents": torch.as_tensor(parents).to(torch.int16),
            "removed": torch.as_tensor(self.removed).to(torch.uint8),
            "base": self.logits[:, 0].half(),
            "changes": (self.logits[:, 1:] - self.logits[:, :1]).half(),
        }
        write_tensors(path, tensors, {"format": _FORMAT, **vars(self.facts)})

    @classmethod
    def load(cls, path: Path) -> StoredTruth:
        """Read the file of ``save``."""
        tensors, metadata = read_intact(path, _ADVICE), read_metadata(path)
        try:
            if metadata.pop("format") != _FORMAT:
                raise ValueError("it has another format")
            facts = _read_facts(metadata)
            partition = _read_partition(facts, tensors["groups"], tensors["parents"])
            removed = _read_removed(facts, partition, tensors["removed"])
            logits = _read_logits(facts, len(removed), tensors["base"], tensors["changes"])
        except (KeyError, TypeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' is not a stored truth ({why}): {_ADVICE}.") from None
        return cls(facts, partition, removed, logits)

    @property
    def key(self) -> str:
        """A hash of the setup and the groups, for names of results that depend on them."""
        return short_hash([dict(self.facts.setup), self.partition.groups.tolist()])

    @property
    def unions(self) -> np.ndarray:
        """The random unions of half of the groups ``(U, K)``."""
        return self.removed[len(self.removed) - self.facts.setup["unions"] :]

    @property
    def pairs(self) -> np.ndarray:
        """The random pairs of groups ``(R − 1 − K − U, K)``."""
        return self.removed[1 + len(self.partition) : len(self.removed) - self.facts.setup["unions"]]

    def fits(self, setup: Setup) -> bool:
        """True if this is the truth of a setup. DDM's settings and the location of files do not matter."""
        return short_hash(dict(self.facts.setup)) == setup.question_key()

    def effects(self, query: EffectQuery) -> list[Effects]:
        """The true effects that a query asks for, one for each batch order."""
        if (len(query.test), len(query.test) + len(query.validation)) != (self.facts.tests, self.logits.shape[2]):
            raise InputError("the stored truth is of other test samples: ask for those of its setup.")
        rows = self._rows(query.removed)
        task = task_of(None if query.test.has_classes else "regression")
        return [effects_of_outputs(logits[rows], logits[0], query, task) for logits in self.logits]

    def check_data(self, data: Mapping[str, str], count: int) -> None:
        """Refuse data other than those that the retrainings used.

        data:  a hash of each split
        count: number of training samples
        """
        other = [split for split, value in data.items() if self.facts.data.get(split) != value]
        if not other and count != len(self.partition.groups):
            other = ["training"]
        if other:
            raise InputError(
                f"the {other[0]} samples are not those of the stored truth: give the publisher's files in --root, "
                "or make the truth again with ddm bench truths."
            )

    def check_target(self, outputs: Tensor, task: Task) -> None:
        """Warn if a target with outputs ``(m + v, L)`` is not the one whose retrainings are stored."""
        stored = task.mean(self.logits[0, 0].double())
        difference = float((task.mean(outputs.cpu().double()) - stored).abs().mean())
        if not difference <= _SAME_TARGET:
            warnings.warn(
                f"rounding on this machine gave another target than the stored truth has: their predictions differ "
                f"by {difference:.2g} on average, more than {_SAME_TARGET:g}, so figures will be lower than they "
                "should be. Make the truth on this machine with ddm bench truths.",
                stacklevel=2,
            )

    def _rows(self, removed: np.ndarray) -> list[int]:
        """The rows of ``removed`` that hold these removals ``(M, K)``."""
        known = {row.tobytes(): number for number, row in enumerate(self.removed)}
        try:
            return [known[row.tobytes()] for row in removed.astype(bool)]
        except KeyError:
            raise InputError("the stored truth lacks a removal: ask for its groups, pairs or unions.") from None


def _read_facts(metadata: Mapping[str, Any]) -> Facts:
    """The metadata of a file, checked."""
    names, classes = tuple(metadata["names"]), tuple(metadata["classes"])
    facts = Facts(**{**metadata, "names": names, "classes": classes})
    check_fields(facts)
    if not (are_unique_names(names) and are_unique_names(classes)):
        raise ValueError("its names are not unique words")
    if facts.tests < 1 or not 0 <= facts.accuracy <= 1 or not 0 < facts.seconds < math.inf:
        raise ValueError("its figures are out of range")
    return facts


def _read_partition(facts: Facts, groups: Tensor, parents: Tensor) -> Partition:
    """The partition of a file, checked."""
    count, classes = len(facts.names), len(facts.classes)
    if not count or groups.dim() != 1 or groups.dtype != torch.int16 or groups.unique().tolist() != list(range(count)):
        raise ValueError("it does not hold a group for each sample")
    if parents.shape != (count,) or parents.dtype != torch.int16:
        raise ValueError("it does not hold a class for each group")
    if (parents == _NO_CLASS).all():
        return Partition(groups.long().numpy(), facts.names, None, facts.classes)
    if not ((parents >= 0) & (parents < classes)).all():
        raise ValueError("it does not hold a class for each group")
    return Partition(groups.long().numpy(), facts.names, parents.long().numpy(), facts.classes)


def _read_removed(facts: Facts, partition: Partition, removed: Tensor) -> np.ndarray:
    """The removals of a file ``(R, K)``, checked."""
    count, unions = len(partition), facts.setup["unions"]
    if removed.dim() != 2 or removed.shape[1] != count or removed.dtype != torch.uint8:
        raise ValueError("its removals are not those of its groups")
    if type(unions) is not int or not 0 < unions < len(removed) - count:
        raise ValueError("its unions are missing")
    if not torch.equal(removed[: count + 1].bool(), torch.cat([torch.zeros(1, count), torch.eye(count)]).bool()):
        raise ValueError("it does not remove every group once")
    return removed.bool().numpy()


def _read_logits(facts: Facts, removals: int, base: Tensor, changes: Tensor) -> Tensor:
    """The logits of a file ``(O, R, m + v, L)``, checked."""
    samples = base.shape[1] if base.dim() == 3 else 0
    shape = (facts.setup["orders"], removals - 1, samples, len(facts.classes))
    if samples <= facts.tests or base.shape != (shape[0], *shape[2:]) or changes.shape != shape:
        raise ValueError("its logits do not fit its removals, samples and classes")
    if not base.dtype == changes.dtype == torch.float16:
        raise ValueError("its logits are not in half precision")
    return torch.cat([torch.zeros_like(base)[:, None], changes], 1).float() + base.float()[:, None]
