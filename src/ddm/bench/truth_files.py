"""Make the files of stored truths: retrain without each group, pairs and unions of groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ddm.bench.output import package_versions
from ddm.bench.problem import Problem
from ddm.bench.problems import stored_setup
from ddm.bench.truths import Facts, StoredTruth
from ddm.compute.engine import Engine
from ddm.truth.retraining import group_rows

_PAIRS = 6
"""Number of random pairs of groups that are removed together."""


def truth_file(folder: Path, name: str) -> Path:
    """The file of a problem's truth."""
    return folder / f"{name}.safetensors"


def make_truths(names: Sequence[str], root: str | None, out: Path, work: Path, engine: Engine = None) -> list[Path]:
    """Write the truth of each problem that has no file in ``out``; return the files of all.

    root: folder of the datasets
    work: the folder where retrained models are cached
    """
    setups = {name: stored_setup(name, root) for name in names}
    for name, setup in setups.items():
        if not truth_file(out, name).exists():
            measure_truth(Problem(setup, work, engine)).save(truth_file(out, name))
    return [truth_file(out, name) for name in names]


def measure_truth(problem: Problem) -> StoredTruth:
    """Retrain a problem's target without each removal, with each batch order, and keep the outputs."""
    partition, query, setup = problem.partition, problem.effect_query, problem.setup
    nothing, singles = np.zeros((1, len(partition)), dtype=bool), query.removed[: len(query.groups)]
    removed = np.vstack([nothing, singles, random_pairs(len(partition), _PAIRS, setup.seed), query.unions])
    removals, orders = group_rows(partition, removed), range(setup.orders)
    problem.exact.run(removals, orders)
    logits = torch.stack([problem.exact.outputs(removals, order, query.inputs()) for order in orders])
    facts = Facts(
        setup={name: value for name, value in setup.to_dict().items() if name not in ("root", "settings")},
        names=partition.names,
        classes=partition.classes,
        data=problem.data_hashes,
        target=problem.target.fingerprint(),
        tests=len(query.test),
        accuracy=problem.test_score,
        seconds=problem.training_seconds,
        versions=package_versions(),
    )
    return StoredTruth(facts, partition, removed, logits)


def random_pairs(groups: int, count: int, seed: int) -> np.ndarray:
    """At most ``count`` different pairs of groups ``(count, K)``, as booleans; at least one group stays."""
    pairs = np.array(list(itertools.combinations(range(groups), 2)) if groups > 2 else [], dtype=np.int64)
    drawn = np.random.default_rng([seed, 11]).permutation(len(pairs))[:count]
    removed = np.zeros((len(drawn), groups), dtype=bool)
    np.put_along_axis(removed, pairs.reshape(-1, 2)[drawn], True, axis=1)
    return removed
