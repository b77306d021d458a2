"""Probes: the gradient of the loss in the outputs of a few batches, which shows the loss that a training used.

A training step on a batch with outputs f (b, L) sends back the gradient a (b, L) of its loss in these outputs. For a
per-sample loss ℓ the gradient is ``a_i = c ∇ℓ(f_i, y_i)``: c = 1/b for a mean over the batch, 1 for a sum, and smaller
for gradients that are accumulated over several batches. So the recorder measures c instead of guessing it, and sees
when no c fits, because the training used other targets or another loss.

The labels y are not seen. Of the classes whose outputs a step raises most, the label is the one that explains a best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.losses import SampleLoss

_SAMPLES, _CANDIDATES = 32, 8
"""Maximum samples of a batch that a probe keeps, and maximum classes that are tried as the label of a sample."""

_CLEAR = 0.6
"""Share of a sample's gradient on one output that shows its label; cross-entropy has at least 0.7 there."""

_UNEXPLAINED = 0.05
"""Share of the gradients that another loss leaves unexplained; the rounding of bfloat16 stays below it."""

_SAME = 1e-3
"""Scales that differ from 1 by less than this are 1."""

_LEAST_SMOOTHING, _ROUNDING = 0.02, 0.01
"""Least label smoothing that is reported, and the share of the gradients that the rounding of bfloat16 may explain."""


@dataclass(frozen=True)
class Probe:
    """A few samples of a batch.

    outputs:      f ``(m, L)``
    slopes:       a ``(m, L)``
    step_samples: number of samples whose gradients the optimizer step adds up
    """

    outputs: Tensor
    slopes: Tensor
    step_samples: int

    @classmethod
    def of(cls, outputs: Tensor, slopes: Tensor) -> Probe | None:
        """A probe of a batch; None if its outputs are not those of a classifier, or if all gradients are zero."""
        if outputs.dim() != 2 or outputs.shape[1] < 2:
            return None
        outputs, slopes = outputs.detach().float().cpu(), slopes.detach().float().cpu()
        kept = slopes.any(1).nonzero()[:_SAMPLES, 0]
        return cls(outputs[kept], slopes[kept], len(outputs)) if len(kept) else None

    @classmethod
    def load(cls, outputs: Tensor, slopes: Tensor, step_samples: int) -> Probe:
        """A probe from a file. Raises ValueError if its values do not fit together."""
        if outputs.dim() != 2 or outputs.shape != slopes.shape or outputs.dtype != slopes.dtype != torch.float32:
            raise ValueError("the recorded gradients do not fit together")
        if type(step_samples) is not int or step_samples < 1:
            raise ValueError("the number of samples of a step is invalid")
        return cls(outputs, slopes, step_samples)

    def clear(self) -> Probe:
        """The samples whose gradient lies mostly on one output, which then must be the label."""
        rows = -self.slopes.amin(1) > _CLEAR * self.slopes.norm(dim=1)
        return Probe(self.outputs[rows], self.slopes[rows], self.step_samples)

    def expected(self, loss: SampleLoss) -> Tensor:
        """∇ℓ ``(m, L)`` of each sample, with the label that explains its gradient best."""
        raised = self.slopes.topk(min(_CANDIDATES, self.slopes.shape[1]), largest=False).indices
        labels = torch.cat([raised, self.outputs.argmax(1, keepdim=True)], 1)  # smoothing may lower a sure label
        count, tried = labels.shape
        outputs = self.outputs.repeat_interleave(tried, 0).requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(loss.each(outputs, labels.flatten()).sum(), outputs)
        slopes = slopes.view(count, tried, -1)
        best = F.cosine_similarity(slopes, self.slopes[:, None], dim=2).argmax(1)
        return slopes[torch.arange(count), best]

    def fit(self, loss: SampleLoss) -> tuple[float, float]:
        """The gradient of the step relative to that of the mean loss, n c, and the share that it does not explain."""
        expected = self.expected(loss)
        scale = (self.slopes * expected).sum() / expected.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
        unexplained = (self.slopes - scale * expected).norm() / self.slopes.norm()
        return self.step_samples * float(scale), float(unexplained)


def mean_scale(probes: Sequence[Probe], loss: SampleLoss) -> float:
    """The mean scale of some probes; 1 without probes, and for a mean over the batch."""
    scale = sum(probe.fit(loss)[0] for probe in probes) / len(probes) if probes else 1.0
    return scale if abs(scale - 1) > _SAME else 1.0


def contradiction(probes: Sequence[Probe], loss: SampleLoss) -> str | None:
    """Name the other loss that the training seems to have used, to end a sentence; None if this loss may be right."""
    if not probes:
        return None
    if loss.is_cross_entropy and (smoothing := _smoothing(probes)) is not None:
        return (
            f"label smoothing of about {smoothing:.2g}: give loss=nn.CrossEntropyLoss(label_smoothing={smoothing:.2g})"
        )
    if sum(probe.fit(loss)[1] > _UNEXPLAINED for probe in probes) <= len(probes) / 2:
        return None
    if _has_class_weights(probes):
        return "weights for the classes: give loss=nn.CrossEntropyLoss(weight=…) with these weights"
    return "other targets, as mixup or distillation do, or another loss: give the loss that you trained with"


def _residuals(probes: Sequence[Probe]) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions p, one-hot labels y, and gradients in units of the mean loss, each ``(m, L)``, of clear samples."""
    clear = [probe.clear() for probe in probes]
    p = torch.cat([probe.outputs for probe in clear]).softmax(1)
    slopes = torch.cat([probe.slopes * probe.step_samples for probe in clear])
    return p, F.one_hot(slopes.argmin(1), p.shape[1]).float(), slopes


def _has_class_weights(probes: Sequence[Probe]) -> bool:
    """True if every gradient is a multiple of p − y, with a factor of its own."""
    p, y, slopes = _residuals(probes)
    if not len(p):
        return False
    factors = (slopes * (p - y)).sum(1) / (p - y).square().sum(1)
    return float((slopes - factors[:, None] * (p - y)).norm() / slopes.norm()) < _UNEXPLAINED


def _smoothing(probes: Sequence[Probe]) -> float | None:
    """ε of label smoothing, a ∝ (p − y) + ε(y − 1/L), by least squares; None if it does not explain the gradients."""
    p, y, slopes = _residuals(probes)
    if not len(p):
        return None
    design = torch.stack([p - y, y - 1 / p.shape[1]], -1).flatten(0, 1).double()
    found = torch.linalg.lstsq(design, slopes.double().flatten()[:, None]).solution[:, 0]
    unexplained = float((slopes.flatten() - design @ found).norm() / slopes.norm())
    smoothing = float(found[1] / found[0])
    found_it = unexplained < _UNEXPLAINED and _LEAST_SMOOTHING < smoothing < 1
    return smoothing if found_it and _plain_unexplained(p - y, slopes) > _ROUNDING else None


def _plain_unexplained(plain: Tensor, slopes: Tensor) -> float:
    """Share of the gradients that plain cross-entropy, p − y, does not explain."""
    fitted = (slopes * plain).sum() / plain.square().sum() * plain
    return float((slopes - fitted).norm() / slopes.norm())
