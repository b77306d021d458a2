"""A whole class: its removal also closes the class's output, which no training sample asks for any more.

The response is first order, and the softmax saturates: without a class, the response alone leaves the class most of
its probability. A training without the class leaves it none. That training only pushes the log-odds
a = log p/(1 − p) of the class down. With J̄ the mean gradient of a over inputs, p ≈ exp(a), and learning rates whose
sum is 1/Λ, gradient descent ends at

    da/dt = −|J̄|² exp(a),    a = −log(1 + J̄ᵀΛ⁻¹J̄).

The bias of the class's output takes the log-odds there without a change of the other outputs. So the displacement of a
class is its response, plus this shift of one bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import Advance
from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.training.target import Target

_SAMPLES = 256
"""Maximum samples of a class, and of the other classes, on which the log-odds of the class are measured."""

_PROBES, _DIFFERENCE = 8, 1e-3
"""Number of inputs that show whether a parameter is the bias of the outputs, and the largest difference allowed."""

PASSES = 2 * _SAMPLES
"""Passes of single samples that closing one class takes."""


class ClassOutputs:
    """The outputs of a target, one for each class.

    damping: Λ ``(P,)``
    biases:  positions in θ of each output's bias ``(L,)``; None if the network has no such parameter
    """

    def __init__(self, target: Target, samples: Samples, damping: Tensor) -> None:
        self.target, self.samples, self.damping = target, samples, damping
        self.biases = output_biases(target, samples.batch(np.arange(min(_PROBES, len(samples))))[0])

    def close(self, responses: Tensor, labels: Sequence[int], advance: Advance = lambda amount: None) -> Tensor:
        """Displacements ``(B, P)`` of classes with these labels and responses ``(B, P)``; ``advance`` counts passes."""
        if self.biases is None:
            return responses
        closed = responses.clone()
        for row, label in enumerate(labels):
            closed[row, self.biases[label]] -= self._excess(self.target.theta + responses[row], label)
            advance(PASSES)
        return closed

    def _excess(self, theta: Tensor, label: int) -> Tensor:
        """By how much the log-odds of a class on its own samples at θ exceed those after a training without it."""
        with torch.no_grad():
            own = self._log_odds(theta, self._rows(label, own=True), label).mean()
        return (own - self.final_log_odds(label)).clamp(min=0)

    def final_log_odds(self, label: int) -> Tensor:
        """−log(1 + J̄ᵀΛ⁻¹J̄): the log-odds of a class after a training without it."""
        theta = self.target.theta.detach().requires_grad_()
        with torch.enable_grad():
            mean = self._log_odds(theta, self._rows(label, own=False), label).mean()
            (gradient,) = torch.autograd.grad(mean, theta)
        return -torch.log1p((gradient.square() / self.damping).sum())

    def _log_odds(self, theta: Tensor, rows: np.ndarray, label: int) -> Tensor:
        """log p/(1 − p) ``(b,)`` of a class, for the samples at ``rows``."""
        x = self.samples.batch(rows)[0].to(self.target.device)
        logits = self.target.flat(theta, self.target.fixed, x)
        others = torch.arange(logits.shape[1], device=logits.device) != label
        return logits[:, label] - logits[:, others].logsumexp(1)

    def _rows(self, label: int, own: bool) -> np.ndarray:
        """Evenly spaced samples of a class, or of the other classes."""
        rows = np.flatnonzero((self.samples.labels.numpy() == label) == own)
        spaced = np.unique(np.linspace(0, len(rows) - 1, _SAMPLES).round().astype(int))
        chosen: np.ndarray = rows[spaced]
        return chosen


def output_biases(target: Target, x: X) -> Tensor | None:
    """Positions in θ of the parameter that adds a number to each output ``(L,)``; None if there is none.

    It is the parameter whose shift changes the outputs of the inputs ``x (n, ...)`` by the same shift. A number that
    is added to all outputs of an input makes no difference.
    """
    before, start = target.outputs(x), 0
    shift = torch.linspace(-1, 1, before.shape[1]).to(before)
    for shape, size in zip(target.flat.shapes.values(), target.flat.sizes, strict=True):
        positions = torch.arange(start, start + size, device=target.device)
        start += size
        if shape != (before.shape[1],):
            continue
        theta = target.theta.index_add(0, positions, shift)
        with torch.no_grad():
            rest = target.flat(theta, target.fixed, x.to(target.device)) - before - shift
        if (rest - rest.mean(1, keepdim=True)).abs().max() < _DIFFERENCE:
            return positions
    return None
