"""The loss of each sample, ``losses(outputs (b, L), labels (b,)) → (b,)``, from the loss of a training.

A training may minimise the mean, the sum or a weighted mean over each batch. The influence of a group needs the loss
of each sample alone. ``sample_loss`` takes torch's losses apart by their ``reduction``, and calls any other loss with
one sample at a time.

A constant factor between both does not matter, because the recorder measures it: the learning rates of a trajectory
are in units of the mean of these losses (``ddm.training.probes``).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits (b, L), labels (b,) or soft targets (b, L))``: a scalar, or one value per sample ``(b,)``."""

_SAME = 1e-3
"""Relative difference up to which two values of a loss count as equal."""


class SampleLoss:
    """The loss of each sample of a batch. Called with a batch, it returns their mean.

    original: the loss as the training uses it
    name:     its name in files: ``cross_entropy``, or ``own NAME`` with a name that says how it differs
    """

    def __init__(self, original: Loss, single: Loss | None, name: str) -> None:
        self.original, self.single, self.name = original, single, name

    @property
    def is_cross_entropy(self) -> bool:
        """True for torch's cross-entropy without class weights and label smoothing."""
        return self.name == _PLAIN

    @property
    def is_torchs(self) -> bool:
        """True for one of torch's losses, whose samples can be had without calling it for each."""
        return self.single is not None

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample ``(b,)``. Losses of several positions or outputs of a sample are averaged."""
        losses = self._one_by_one(outputs, labels) if self.single is None else self.single(outputs, labels)
        if losses.dim() == 0 or len(losses) != len(outputs):
            raise InputError(
                f"the loss returns shape {tuple(losses.shape)} for {len(outputs)} samples: "
                "give one that returns a loss for each sample."
            )
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples, a scalar."""
        return self.each(outputs, labels).mean()

    def batch(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss that a training step minimises, a scalar."""
        value = self.original(outputs, labels)
        return value.mean() if value.dim() else value

    def weighted(self, outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss that a training step minimises if samples have weights ``(b,)``, a scalar.

        It is Σ w_i ℓ_i / Σ w_i for a mean, and Σ w_i ℓ_i for a sum. If all weights are 1 it is ``batch``, bit for bit.
        """
        if (weights == 1).all():
            return self.batch(outputs, labels)
        how = self.reduction(outputs.detach(), labels)
        if how is None:
            raise InputError("weights of samples need a loss that is a mean or a sum over the samples of a batch.")
        total = (weights * self.each(outputs, labels)).sum()
        return total / weights.sum() if how == "mean" else total

    def reduction(self, outputs: Tensor, labels: Tensor) -> str | None:
        """How the original loss combines the samples of a batch: mean or sum; None if it does neither."""
        with torch.no_grad():
            batch, each = self.batch(outputs, labels).double(), self.each(outputs, labels).double()
        for name, combined in (("mean", each.mean()), ("sum", each.sum())):
            if (batch - combined).abs() <= _SAME * combined.abs() + torch.finfo(torch.float32).eps:
                return name
        return None

    def _one_by_one(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Call the original loss with each sample alone."""

        def single(output: Tensor, label: Tensor) -> Tensor:
            value: Tensor = self.original(output[None], label[None])
            return value.reshape(-1).mean()

        try:
            losses: Tensor = torch.func.vmap(single)(outputs, labels)
        except RuntimeError:  # vmap cannot run losses that branch on values
            losses = torch.stack([single(*pair) for pair in zip(outputs, labels, strict=True)])
        return losses


_PLAIN = "cross_entropy"


def sample_loss(loss: Loss) -> SampleLoss:
    """The loss of each sample, from the loss of a batch."""
    if isinstance(loss, SampleLoss):
        return loss
    if loss is F.cross_entropy:
        return SampleLoss(loss, functools.partial(F.cross_entropy, reduction="none"), _PLAIN)
    single = _without_reduction(loss)
    plain = single is not None and _is_plain_cross_entropy(loss)
    name = _PLAIN if plain else f"own {getattr(loss, '__name__', type(loss).__name__)}"
    return SampleLoss(loss, single, name)


def _without_reduction(loss: Loss) -> Loss | None:
    """One of torch's losses with ``reduction="none"``; None for a loss that is not torch's."""
    if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn") and hasattr(loss, "reduction"):
        single = copy.copy(loss)
        single.reduction = "none"  # type: ignore[assignment]
        return single
    function: Any = loss.func if isinstance(loss, functools.partial) else loss
    args, options = (loss.args, loss.keywords) if isinstance(loss, functools.partial) else ((), {})
    if getattr(function, "__module__", None) == F.__name__ and "reduction" in inspect.signature(function).parameters:
        return functools.partial(function, *args, **{**options, "reduction": "none"})
    return None


def _is_plain_cross_entropy(loss: Any) -> bool:
    """True for torch's cross-entropy with default options; its reduction may be any."""
    if isinstance(loss, functools.partial):
        options = {name: value for name, value in loss.keywords.items() if name != "reduction"}
        return loss.func is F.cross_entropy and not loss.args and not options
    plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.ignore_index == -100
    return plain and loss.label_smoothing == 0
