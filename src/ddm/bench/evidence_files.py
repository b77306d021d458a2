"""The stored evidence of a problem: the outputs of retrainings without unions of groups, and in other batch orders.

NAME.safetensors holds, for K groups, O batch orders, R retrainings, m test and v validation samples and L classes,

    removed  (R, K)         uint8    1 for removed groups
    orders   (R,)           int16    the batch order of each retraining; 0 is the target's own
    started  (O,)           int16    each batch order once, in increasing order
    base     (O, m + v, L)  float16  logits with all groups, by batch order
    changes  (R, m + v, L)  float16  the logits after each removal, minus ``base`` in the same batch order

The stored truth (``ddm.bench.truths``) has the retrainings without each single group in batch orders 0 and 1. No
evidence is in batch order 1: it tests what evidence says about runs that nobody has trained yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddm.bench.problem import Problem
from ddm.bench.problems import stored_setup
from ddm.bench.truth_files import truth_file
from ddm.bench.truths import StoredTruth
from ddm.compute.engine import Engine
from ddm.compute.tensors import read_intact, read_metadata, write_tensors
from ddm.counterfactual.designs import leave_one_out
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.truth.refinement import deal_unions
from ddm.truth.retraining import group_rows

EVIDENCE_PROBLEMS = (
    *("mnist-plain", "mnist-momentum", "mnist-adam"),
    *("cifar10-convnet", "cifar10-resnet", "cifar10-vit"),
)
"""The stored problems that have evidence."""

OTHER_ORDERS = range(2, 7)
"""The other batch orders of evidence."""

_FORMAT = "ddm evidence 1"

_ADVICE = "restore it, or delete it and run ddm bench truths --evidence again"


@dataclass(frozen=True, eq=False)
class StoredEvidence:
    """Retrainings of one problem.

    truth:   hash of the setup and the groups, ``StoredTruth.key``
    removed: the removed groups as booleans ``(R, K)``
    orders:  the batch order of each retraining ``(R,)``
    started: the batch orders ``(O,)``
    base:    logits ``(O, m + v, L)`` with all groups, by batch order
    changes: how each retraining changed them ``(R, m + v, L)``
    """

    truth: str
    removed: np.ndarray
    orders: np.ndarray
    started: np.ndarray
    base: Tensor
    changes: Tensor

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        tensors = {
            "removed": torch.as_tensor(self.removed).to(torch.uint8),
            "orders": torch.as_tensor(self.orders).to(torch.int16),
            "started": torch.as_tensor(self.started).to(torch.int16),
            "base": self.base.half(),
            "changes": self.changes.half(),
        }
        write_tensors(path, tensors, {"format": _FORMAT, "truth": self.truth})

    @classmethod
    def load(cls, path: Path) -> StoredEvidence:
        """Read the file of ``save``."""
        tensors, metadata = read_intact(path, _ADVICE), read_metadata(path)
        try:
            if metadata["format"] != _FORMAT or not isinstance(metadata["truth"], str):
                raise ValueError("it has another format")
            _check(**{name: tensors[name] for name in ("removed", "orders", "started", "base", "changes")})
        except (KeyError, TypeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' is not stored evidence ({why}): {_ADVICE}.") from None
        return cls(
            truth=metadata["truth"],
            removed=tensors["removed"].bool().numpy(),
            orders=tensors["orders"].long().numpy(),
            started=tensors["started"].long().numpy(),
            base=tensors["base"].float(),
            changes=tensors["changes"].float(),
        )

    def check_fits(self, truth: StoredTruth) -> None:
        """Refuse the evidence of other groups, samples or another setup than those of a stored truth."""
        shapes = (len(truth.partition), *truth.logits.shape[2:])
        if self.truth != truth.key or (self.removed.shape[1], *self.changes.shape[1:]) != shapes:
            raise InputError(f"the stored evidence is not of the stored truth's problem: {_ADVICE}.")


def _check(removed: Tensor, orders: Tensor, started: Tensor, base: Tensor, changes: Tensor) -> None:
    """Raise ``ValueError`` for tensors that do not fit together."""
    count = len(removed) if removed.dim() == 2 else 0
    if not count or removed.dtype != torch.uint8 or bool((removed > 1).any()):
        raise ValueError("its removals are not masks")
    if not bool((removed.any(1) & ~removed.all(1)).all()):
        raise ValueError("a removal has no group or all groups")
    if orders.shape != (count,) or orders.dtype != torch.int16 or started.dtype != torch.int16 or started.dim() != 1:
        raise ValueError("its batch orders are not numbers")
    if orders.unique().tolist() != started.tolist() or bool((started < 0).any()):
        raise ValueError("its batch orders are not those of its trainings on all groups")
    if base.dim() != 3 or len(base) != len(started) or changes.shape != (count, *base.shape[1:]):
        raise ValueError("its logits do not fit its removals, samples and classes")
    if not base.dtype == changes.dtype == torch.float16:
        raise ValueError("its logits are not in half precision")


def evidence_design(partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    """The removals ``(R, K)`` and batch orders ``(R,)`` of stored evidence.

    In the target's order: K unions of a sixth of the groups and K of a tenth. In each other order: one round of the
    larger unions, in which every group is once, and every fifth group alone.
    """
    count, orders = len(partition), len(OTHER_ORDERS)
    large, small = math.ceil(count / 6), max(2, round(count / 10))

    def unions(size: int, number: int, seed: Sequence[int]) -> np.ndarray:
        return np.stack(list(islice(deal_unions(partition, size, np.random.default_rng(seed)), number)))

    parts = [(0, unions(large, count, [1, large])), (0, unions(small, count, [1, 3]))]
    for order in OTHER_ORDERS:
        parts.append((order, unions(large, round(count / large), [2, order])))
        parts.append((order, leave_one_out(count)[order - OTHER_ORDERS[0] :: orders]))
    removed = np.vstack([rows for _, rows in parts])
    found = np.concatenate([np.full(len(rows), order) for order, rows in parts])
    once = np.sort(np.unique(np.column_stack([found, removed]), axis=0, return_index=True)[1])
    return removed[once], found[once]


def measure_evidence(problem: Problem) -> StoredEvidence:
    """Retrain a problem's target by the design of evidence, and keep the outputs."""
    if problem.stored is None:
        raise InputError("evidence needs the stored truth of its problem: make it with ddm bench truths.")
    removed, orders = evidence_design(problem.partition)
    started, x = np.unique(orders), problem.effect_query.inputs()
    base, changes = [], torch.empty(len(removed), *problem.stored.logits.shape[2:])
    for order in started:
        rows = np.flatnonzero(orders == order)
        asked = np.vstack([np.zeros((1, removed.shape[1]), dtype=bool), removed[rows]])
        all_groups, *others = problem.exact.outputs(group_rows(problem.partition, asked), int(order), x)
        base.append(all_groups)
        changes[torch.as_tensor(rows)] = torch.stack(others) - all_groups
    return StoredEvidence(problem.stored.key, removed, orders, started, torch.stack(base), changes)


def make_evidence(
    names: Sequence[str], root: str | None, truths: Path, out: Path, work: Path, engine: Engine = None
) -> list[Path]:
    """Write the evidence of each problem that has no file in ``out``; return the files of all.

    root:   folder of the datasets
    truths: folder of the stored truths
    work:   the folder where retrained models are cached
    """
    problems = {name: evidence_problem(name, root, truths, work, engine) for name in names}
    for name, problem in problems.items():
        if not truth_file(out, name).exists():
            measure_evidence(problem).save(truth_file(out, name))
    return [truth_file(out, name) for name in names]


def evidence_problem(name: str, root: str | None, truths: Path, work: Path, engine: Engine = None) -> Problem:
    """A stored problem with its truth."""
    setup, path = stored_setup(name, root), truth_file(truths, name)
    if not path.exists():
        raise InputError(f"there is no stored truth '{path}': make it with ddm bench truths, or give --truths.")
    return Problem(setup, work, engine, StoredTruth.load(path))
