"""FastIF (Guo et al., 2021): influence functions, but only of the training samples nearest to the one asked about.

For each sample z the nearest tenth of the training set, 100 at least, is found in the target's penultimate features;
the others score nothing. Their influence is LiSSA's, with fewer terms than ``koh-lissa`` takes. The validation set is
one item: nearest to it are the samples nearest to any of its own.
"""

from __future__ import annotations

import numpy as np
import torch

from ddm.baselines.effects import influences, sums
from ddm.baselines.influence import gradient, products
from ddm.baselines.koh import lissa
from ddm.baselines.peers import peer
from ddm.baselines.protocol import Question, Scores
from ddm.partition import features_of

_SHARE = 0.1
_FEWEST = 100
_DEPTH = 25
_BATCH = 16


def fastif(question: Question, neighbours: int | None = None, depth: int = _DEPTH, batch: int = _BATCH) -> Scores:
    """``(1/n) Σ g_iᵀ (H + λI)⁻¹ g_z`` over the samples i of the group among the ``neighbours`` nearest to z."""
    count = len(question.train)
    neighbours = min(count, neighbours or max(_FEWEST, round(_SHARE * count)))
    train = features_of(question.train, None, question.target)
    distances = np.stack(
        [np.linalg.norm(train - point, axis=1) for point in features_of(question.test, None, question.target)]
        + [_nearest(train, features_of(question.validation, None, question.target))]
    )
    near = np.zeros(distances.shape, dtype=bool)
    np.put_along_axis(near, np.argsort(distances, axis=1, kind="stable")[:, :neighbours], True, axis=1)
    with peer("dattri", question.seed):
        asked = [gradient(question, question.test[[i]]) for i in range(len(question.test))]
        solved = lissa(question, torch.stack([*asked, gradient(question, question.validation)]), depth, batch)
    effects = sums(question.partition, np.where(near.T, products(question, question.train, solved), 0.0)) / count
    return influences(effects[:, :-1], effects[:, -1], train.nbytes)


def _nearest(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The distance of each point to the nearest of the others ``(n,)``."""
    found: np.ndarray = np.min([np.linalg.norm(points - other, axis=1) for other in others], axis=0)
    return found
