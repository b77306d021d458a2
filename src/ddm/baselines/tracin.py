"""TracIn (Pruthi et al., 2020) with captum: products of gradients, summed over the checkpoints of the training.

    loss effect = (1/n) Σ_t η_t Σ_{i∈κ} g_i(θ_t)ᵀ g_z(θ_t)

η_t is the sum of learning rates between the previous checkpoint and checkpoint t. Each sample contributes 1/n of every
step, so to first order the score is how much the group's share of the steps has lowered the loss.
"""

from __future__ import annotations

import numpy as np

from ddm.baselines.group_scores import scores_from_loss_effects
from ddm.baselines.peers import isolated_library
from ddm.baselines.point import FlatModel, SummedLoss, data_loader, group_batches, query_batches, sum_to_groups
from ddm.baselines.protocol import ScoreRequest, Scores
from ddm.training.trajectory import Trajectory

_CHECKPOINTS = 16
_MEMORY = 2**27
"""Maximum number of floats in the query gradients held at once."""


def tracin(request: ScoreRequest, checkpoints: int = _CHECKPOINTS) -> Scores:
    """Use up to ``checkpoints`` evenly spaced checkpoints after θ_0, including the last."""
    weights = checkpoint_weights(request.target.trajectory, checkpoints)
    batches, groups = group_batches(request)
    queries, items = query_batches(request)
    size = request.target.flat.size
    at_once = max(1, _MEMORY // (size * len(weights)))
    with isolated_library("captum", request.seed):
        from captum.influence import TracInCP

        def load_checkpoint(model: FlatModel, t: int) -> float:
            model.load_checkpoint(t)
            return weights[t]

        method = TracInCP(
            FlatModel(request.target, request.packing),
            data_loader(batches),
            list(weights),
            load_checkpoint,
            loss_fn=SummedLoss(request.target),
        )
        parts = [method.influence(data_loader(queries[i : i + at_once])) for i in range(0, len(queries), at_once)]
    scores = np.concatenate([part.detach().cpu().double().numpy() for part in parts])
    loss, validation = sum_to_groups(request, scores.T / len(request.train), groups, items)
    return scores_from_loss_effects(loss, validation, len(weights) * size * request.target.theta.element_size())


def checkpoint_weights(trajectory: Trajectory, count: int) -> dict[int, float]:
    """η_t of up to ``count`` checkpoints; all equal to 1 if the trajectory has no record of its learning rates."""
    last = len(trajectory) - 1
    chosen = np.unique(np.linspace(1 if count >= last else last / count, last, min(count, last)).round().astype(int))
    rates = np.array([trajectory.cumulative_rates[t] for t in (0, *chosen)])
    weights = np.diff(rates) if np.isfinite(rates).all() else np.ones(len(chosen))
    return {int(t): float(weight) for t, weight in zip(chosen, weights, strict=True)}
