"""FastIF (Guo et al., 2021): influence functions, computed only for the training samples nearest to each query.

For each query z, the nearest tenth of the training set (at least 100 samples) is found in the target's penultimate
features; all other samples score zero. Influences come from LiSSA with fewer terms than ``koh-lissa``. The validation
set is one query: its neighbours are the training samples nearest to any of its samples.
"""

from __future__ import annotations

import numpy as np
import torch

from ddm.baselines.group_scores import scores_from_loss_effects, sum_over_groups
from ddm.baselines.influence import gradient_products, mean_gradient
from ddm.baselines.koh import lissa_solve
from ddm.baselines.peers import isolated_library
from ddm.baselines.protocol import ScoreRequest, Scores
from ddm.data.samples import Samples
from ddm.groups.features import features_of

_NEIGHBOUR_SHARE = 0.1
_FEWEST_NEIGHBOURS = 100
_DEPTH = 25
_BATCH = 16


def fastif(request: ScoreRequest, neighbours: int | None = None, depth: int = _DEPTH, batch: int = _BATCH) -> Scores:
    """``(1/n) Σ g_iᵀ (H + λI)⁻¹ g_z`` over the group's samples i among the ``neighbours`` nearest to z."""
    count = len(request.train)
    neighbours = min(count, neighbours or max(_FEWEST_NEIGHBOURS, round(_NEIGHBOUR_SHARE * count)))
    features = _features(request, request.train)
    is_near = _nearest_mask(_query_distances(request, features), neighbours)
    with isolated_library("dattri", request.seed):
        queries = [mean_gradient(request, request.test[[i]]) for i in range(len(request.test))]
        queries.append(mean_gradient(request, request.validation))
        solved = lissa_solve(request, torch.stack(queries), depth, batch)
    products = np.where(is_near.T, gradient_products(request, request.train, solved), 0.0)
    effects = sum_over_groups(request.partition, products) / count
    return scores_from_loss_effects(effects[:, :-1], effects[:, -1], features.nbytes)


def _features(request: ScoreRequest, samples: Samples) -> np.ndarray:
    return features_of(samples, None, request.target)


def _query_distances(request: ScoreRequest, train: np.ndarray) -> np.ndarray:
    """Distances ``(m + 1, n)`` of training features ``(n, F)`` to each test sample and to the validation set."""

    def to_point(point: np.ndarray) -> np.ndarray:
        distances: np.ndarray = np.linalg.norm(train - point, axis=1)
        return distances

    test = [to_point(point) for point in _features(request, request.test)]
    validation = np.min([to_point(point) for point in _features(request, request.validation)], axis=0)
    return np.stack([*test, validation])


def _nearest_mask(distances: np.ndarray, count: int) -> np.ndarray:
    """True for the ``count`` smallest values of each row."""
    mask = np.zeros(distances.shape, dtype=bool)
    np.put_along_axis(mask, np.argsort(distances, axis=1, kind="stable")[:, :count], True, axis=1)
    return mask
