"""Scores: the effect of every training sample on every test sample, as other attribution libraries give them.

To first order, the training without sample i ends at θ_τ + d_i, and an objective of test sample j changes by

    score_ij = c_j·J(x_j) d_i,    d_i = (Ḡ + cΛ)⁻¹ (1/n) Σ_t ω_t ∘ ∇L(θ_t; i),    c_j = ∇objective_j at the target.

So every test sample needs one solve with the transposed matrix, and every training sample one gradient at each
checkpoint, whatever the number of test samples.

The curvature of the samples themselves is left in. So the scores of a group add up to a bit less than its effect in
``attribute``, which leaves out the group's own curvature.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ddm.answers.objectives import Objective
from ddm.answers.question import Batch
from ddm.compute.progress import bar
from ddm.curvature.clipping import sample_gradients
from ddm.curvature.gradients import output_gradients
from ddm.data.inputs import X
from ddm.distil.response.solve import Responses
from ddm.errors import InputError
from ddm.training.target import Target

_FLOATS = 2**27
"""Maximum floats of test directions in memory (512 MiB in single precision). More test samples come in parts, each of
which computes the gradients of the training samples again."""

_BATCH = 128
"""Maximum training samples whose gradients are in memory at once."""

_GRADIENTS = 2**25
"""Maximum floats in these gradients."""


def find_scores(responses: Responses, batch: Batch, objective: Objective, output: int | None) -> np.ndarray:
    """Scores ``(n_train, n_test)``: the effect of removing training sample i on the objective of test sample j.

    output: number of the value, for objectives with several; None is the likeliest one of each test sample
    """
    target, samples = responses.target, responses.samples
    slopes = _slopes(target, batch, objective, output)
    scores = np.empty((len(samples), len(slopes)), dtype=np.float32)
    each = max(1, _FLOATS // target.flat.size)
    for start in range(0, len(slopes), each):
        part = slice(start, start + each)
        _fill(scores[:, part], responses, _directions(responses, batch[0][part], slopes[part]))
    return scores


def _slopes(target: Target, batch: Batch, objective: Objective, output: int | None) -> Tensor:
    """c ``(n, L)``: the gradient of each test sample's own objective by its outputs."""
    base, y = target.outputs(batch[0]), batch[1]
    labels = [objective.labels_on(None if y is None else y[j : j + 1], base.device) for j in range(len(base))]
    rows = zip(base.split(1), labels, strict=True)
    slopes = torch.cat([_slope(objective, outputs, label, output) for outputs, label in rows])
    if not bool(slopes.any()):
        raise InputError(
            f"'{objective.name}' has its extreme at the target, so single samples have no score: ask about the loss."
        )
    return slopes


def _slope(objective: Objective, base: Tensor, label: Tensor, output: int | None) -> Tensor:
    """The gradient ``(1, L)`` for one test sample."""
    at = base.clone().requires_grad_()
    with torch.enable_grad():
        values = torch.as_tensor(objective.measure(at, base, label)).reshape(-1)
    if not values.requires_grad:
        raise InputError(f"'{objective.name}' has no gradient, so single samples have no score: ask about the loss.")
    likeliest = int(objective.link(base[0]).argmax()) if output is None else output
    focus = likeliest if objective.per_class and len(values) > 1 else 0
    return torch.autograd.grad(values[focus], at)[0]


def _directions(responses: Responses, x: X, slopes: Tensor) -> Tensor:
    """(Ḡ + cΛ)⁻ᵀJ(x_j)ᵀc_j / W̄ ``(n, P)`` of test samples."""
    target = responses.target
    pulled = output_gradients(target, target.theta, target.fixed, x.to(target.device), slopes[:, None])[:, 0]
    return responses.curvature.solve(pulled, transposed=True) / responses.weights.total(target)


def _fill(scores: np.ndarray, responses: Responses, directions: Tensor) -> None:
    """Scores ``(n_train, n)`` of test samples with these directions ``(n, P)``."""
    target, samples = responses.target, responses.samples
    size = max(1, min(_BATCH, _GRADIENTS // target.flat.size))
    rows = torch.arange(len(samples)).split(size)
    scores[:] = 0
    with bar("scores", len(rows) * len(responses.checkpoints)) as advance:
        for position, t in enumerate(responses.checkpoints):
            theta, fixed = target.at(t)
            weight = responses.weights.at(target, position).to(directions)
            for part in rows:
                gradients = sample_gradients(target, theta, fixed, *samples.batch(part))
                found = (gradients * weight) @ directions.T / len(samples)
                scores[part.numpy()] += found.float().cpu().numpy()
                advance(1)
