"""Probes: the gradient of the loss in the outputs of a few batches, which shows the loss that a training used.

A training step on a batch with outputs f (b, L) sends back the gradient a (b, L) of its loss in these outputs. For a
per-sample loss ℓ the gradient is ``a_i = c ∇ℓ(f_i, y_i)``: c = 1/b for a mean over the batch, 1 for a sum, and smaller
for gradients that are accumulated over several batches. So the recorder measures c instead of guessing it, and sees
when no c fits, because the training used other targets or another loss.

Networks of ``transformers`` get the labels y with their inputs, so a probe sees them. Elsewhere the gradient shows
them: the class is the one, of those whose outputs a step raises most, that explains a best; a label of 0 or 1 is 1
where the step raises the output. Numbers to predict do not show, so a regression's loss has the scale that the loss
itself tells: 1 for a mean over the batch, the number of samples for a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.losses import SampleLoss
from ddm.data.tasks import Task

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


_SHOWN = ("classification", "binary", "multilabel")
"""Kinds of tasks whose labels the gradients show."""


@dataclass(frozen=True)
class Probe:
    """A few samples of a batch.

    outputs:      f ``(m, L)``
    slopes:       a ``(m, L)``
    step_samples: number of samples whose gradients the optimizer step adds up
    labels:       y ``(m, ...)``, if the network got them with its inputs
    """

    outputs: Tensor
    slopes: Tensor
    step_samples: int
    labels: Tensor | None = None

    @classmethod
    def of(cls, outputs: Tensor, slopes: Tensor, labels: Tensor | None = None) -> Probe | None:
        """A probe of a batch; None if its outputs are not one row for each sample, or if all gradients are zero."""
        if outputs.dim() not in (1, 2) or not len(outputs):
            return None
        outputs, slopes = (each.detach().float().cpu().reshape(len(each), -1) for each in (outputs, slopes))
        kept = slopes.any(1).nonzero()[:_SAMPLES, 0]
        if labels is not None:
            labels = labels.detach().cpu()[kept] if labels.dim() and len(labels) == len(outputs) else None
        return cls(outputs[kept], slopes[kept], len(outputs), labels) if len(kept) else None

    @classmethod
    def load(cls, outputs: Tensor, slopes: Tensor, step_samples: int, labels: Tensor | None = None) -> Probe:
        """A probe from a file. Raises ValueError if its values do not fit together."""
        if outputs.dim() != 2 or outputs.shape != slopes.shape or outputs.dtype != slopes.dtype != torch.float32:
            raise ValueError("the recorded gradients do not fit together")
        if type(step_samples) is not int or step_samples < 1:
            raise ValueError("the number of samples of a step is invalid")
        if labels is not None and (not labels.dim() or len(labels) != len(outputs)):
            raise ValueError("the recorded labels do not fit together")
        return cls(outputs, slopes, step_samples, labels)

    def clear(self) -> Probe:
        """The samples whose gradient lies mostly on one output, which then must be the label."""
        rows = -self.slopes.amin(1) > _CLEAR * self.slopes.norm(dim=1)
        return Probe(self.outputs[rows], self.slopes[rows], self.step_samples)

    def expected(self, task: Task) -> Tensor:
        """∇ℓ ``(m, L)`` of each sample, with its label, or else with the one that explains its gradient best."""
        if self.labels is not None and self.shows_labels(task):
            return _slopes(self.outputs, self.labels, task)
        if task.kind != "classification":
            return _slopes(self.outputs, self.slopes < 0, task)
        raised = self.slopes.topk(min(_CANDIDATES, self.slopes.shape[1]), largest=False).indices
        labels = torch.cat([raised, self.outputs.argmax(1, keepdim=True)], 1)  # smoothing may lower a sure label
        count, tried = labels.shape
        slopes = _slopes(self.outputs.repeat_interleave(tried, 0), labels.flatten(), task).view(count, tried, -1)
        best = F.cosine_similarity(slopes, self.slopes[:, None], dim=2).argmax(1)
        return slopes[torch.arange(count), best]

    def shows_labels(self, task: Task) -> bool:
        """True if the network got labels, and they are those of this task."""
        if self.labels is None or (task.has_classes and self.labels.is_floating_point()):
            return False
        outputs = self.outputs.shape[1]
        return task.check_labels(self.labels, max(2, outputs) if task.has_classes else outputs) is None

    def fit(self, task: Task) -> tuple[float, float]:
        """The gradient of the step relative to that of the mean loss, n c, and the share that it does not explain."""
        expected = self.expected(task)
        scale = (self.slopes * expected).sum() / expected.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
        unexplained = (self.slopes - scale * expected).norm() / self.slopes.norm()
        return self.step_samples * float(scale), float(unexplained)

    def scale(self, task: Task) -> float:
        """The gradient of the step relative to that of the mean loss, n c; 1 if nothing tells it."""
        if task.by_position:
            return 1.0
        if task.kind in _SHOWN or self.shows_labels(task):
            return self.fit(task)[0]
        return _scale_of_any(task.loss, self.outputs, self.step_samples)


def _slopes(outputs: Tensor, labels: Tensor, task: Task) -> Tensor:
    """∇ℓ ``(m, L)`` of each sample in what the network returned ``(m, L)``."""
    outputs = outputs.detach().requires_grad_()
    with torch.enable_grad():
        losses = task.loss.each(task.shaped(outputs), labels if task.kind != "binary" else labels.flatten().long())
        (slopes,) = torch.autograd.grad(losses.sum(), outputs)
    return slopes


def _scale_of_any(loss: SampleLoss, outputs: Tensor, samples: int) -> float:
    """The loss of a batch relative to the mean of its samples' losses, for a batch of this size with any labels."""
    with torch.no_grad():
        one, two = (
            float(loss.batch(part, part + 1) / loss(part, part + 1)) for part in (outputs[:1], outputs[:1].repeat(2, 1))
        )
    if not 0 < one < math.inf:
        return 1.0
    return one * samples if abs(two - 2 * one) <= _SAME * one else one


def mean_scale(probes: Sequence[Probe], task: Task) -> float:
    """The mean scale of some probes; 1 without probes, and for a mean over the batch."""
    scale = sum(probe.scale(task) for probe in probes) / len(probes) if probes else 1.0
    return scale if abs(scale - 1) > _SAME else 1.0


def contradiction(probes: Sequence[Probe], task: Task) -> str | None:
    """Name the other loss that the training seems to have used, to end a sentence; None if this loss may be right."""
    if not probes or task.kind != "classification":
        return None
    if task.loss.is_cross_entropy and (smoothing := _smoothing(probes)) is not None:
        return (
            f"label smoothing of about {smoothing:.2g}: give loss=nn.CrossEntropyLoss(label_smoothing={smoothing:.2g})"
        )
    if sum(probe.fit(task)[1] > _UNEXPLAINED for probe in probes) <= len(probes) / 2:
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
