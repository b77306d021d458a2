"""TracIn (Pruthi et al., 2020) with captum: gradients that point the same way along the trajectory.

    loss effect = (1/n) Σ_t η_t Σ_{i∈κ} g_i(θ_t)ᵀ g_z(θ_t)

η_t is the length of training (the sum of its learning rates) up to checkpoint t from the one before. Each sample has
had 1/n of it, so that the score is what the group's steps have taken off the loss, to first order.
"""

from __future__ import annotations

import numpy as np

from ddm.baselines.effects import influences
from ddm.baselines.peers import peer
from ddm.baselines.point import Point, Total, asked, gathered, loader, pieces
from ddm.baselines.protocol import Question, Scores
from ddm.trajectory import Trajectory

_CHECKPOINTS = 16
_MEMORY = 2**27
"""Gradients of the samples asked about that are held at once, in numbers."""


def tracin(question: Question, checkpoints: int = _CHECKPOINTS) -> Scores:
    """Over up to ``checkpoints`` checkpoints after θ_0, evenly spaced and with the last."""
    weights = steps(question.target.trajectory, checkpoints)
    batches, groups = pieces(question)
    inputs, items = asked(question)
    size = question.target.flat.size
    at_once = max(1, _MEMORY // (size * len(weights)))
    with peer("captum", question.seed):
        from captum.influence import TracInCP

        model = Point(question.target)

        def load(point: Point, t: int) -> float:
            point.move(t)
            return weights[t]

        method = TracInCP(model, loader(batches), list(weights), load, loss_fn=Total(question.target))
        parts = [method.influence(loader(inputs[i : i + at_once])) for i in range(0, len(inputs), at_once)]
    found = np.concatenate([part.detach().cpu().double().numpy() for part in parts])
    loss, validation = gathered(question, found.T / len(question.train), groups, items)
    return influences(loss, validation, len(weights) * size * question.target.theta.element_size())


def steps(trajectory: Trajectory, count: int) -> dict[int, float]:
    """η_t of up to ``count`` checkpoints; all the same where the trajectory does not know its lengths."""
    last = len(trajectory) - 1
    chosen = np.unique(np.linspace(1 if count >= last else last / count, last, min(count, last)).round().astype(int))
    lengths = np.array([trajectory.lengths[0], *(trajectory.lengths[t] for t in chosen)])
    found = np.diff(lengths) if np.isfinite(lengths).all() else np.ones(len(chosen))
    return {int(t): float(step) for t, step in zip(chosen, found, strict=True)}
