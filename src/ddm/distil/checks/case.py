"""The inputs of a check before a fit, and the findings that it reports."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.distil.checkpoints import real_checkpoints
from ddm.distil.settings import Settings
from ddm.errors import is_out_of_memory
from ddm.groups.partition import Partition
from ddm.training.statistics import with_estimated_statistics
from ddm.training.target import Target

_SAMPLES, FEW_SAMPLES = 256, 32
"""Maximum samples on which the first and the last checkpoint are compared, and every other checkpoint."""

_LARGE = 2**18
"""Networks with more parameters than this are compared on half of the samples, so that checks take seconds."""

_NETWORK_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)
"""What a network raises for inputs that it was not made for."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a target, its samples or its groups.

    sentence: what was found, and what to do
    refused:  True if ``fit`` refuses it, False if ``fit`` warns of it
    """

    sentence: str
    refused: bool = False


class Case:
    """The target, samples and groups of a fit, with values that several checks share, each computed when first used."""

    def __init__(self, target: Target, samples: Samples, partition: Partition | None, settings: Settings) -> None:
        self.target, self.samples, self.partition, self.settings = target, samples, partition, settings
        self.x, self.y = samples.subsample(_SAMPLES if target.flat.size <= _LARGE else _SAMPLES // 2).batch()

    @property
    def has_images(self) -> bool:
        """True if the inputs are pictures."""
        return isinstance(self.x, Tensor) and self.x.dim() == 4

    @cached_property
    def checkpoints(self) -> list[int]:
        """The checkpoints at which the fit computes gradients."""
        return real_checkpoints(self.settings, len(self.target.trajectory) - 1)

    @cached_property
    def _estimated(self) -> Target:
        """The target with the running statistics that the fit uses before the last checkpoint."""
        return with_estimated_statistics(self.target, self.samples.subsample(FEW_SAMPLES), self.checkpoints)

    def logits(self, t: int, x: X) -> Tensor:
        """Logits ``(b, L)`` of inputs at checkpoint ``t``."""
        theta, fixed = (self.target if t == -1 else self._estimated).at(t)
        with torch.no_grad():
            parts = [self.target.flat(theta, fixed, part.to(self.target.device)) for part in x.split(_SAMPLES // 4)]
        return torch.cat(parts).cpu()

    @cached_property
    def first(self) -> Tensor:
        """Logits at θ_0."""
        return self.logits(0, self.x)

    @cached_property
    def last(self) -> Tensor:
        """Logits at θ_τ."""
        return self.logits(-1, self.x)

    @cached_property
    def chance(self) -> float:
        """The cross-entropy of a guess that gives every output the same probability."""
        return math.log(self.last.shape[1])

    @cached_property
    def improvement(self) -> tuple[float, float, float]:
        """Mean loss at θ_0 and at θ_τ, and the mean decrease of the samples' losses in standard errors."""
        before, after = (self._losses(logits) for logits in (self.first, self.last))
        decrease = before - after
        error = float(decrease.std(correction=0)) / math.sqrt(len(decrease))
        return float(before.mean()), float(after.mean()), float(decrease.mean()) / max(error, 1e-12)

    def _losses(self, logits: Tensor) -> Tensor:
        """The loss of each sample ``(b,)``."""
        device = self.target.device
        with torch.no_grad():
            return self.target.loss.each(logits.to(device), self.y.to(device)).cpu().double()

    @cached_property
    def agreement(self) -> tuple[float, float, float]:
        """Share of samples that θ_τ classifies correctly, its expectation by chance, and the excess in standard errors.

        Without classes all three are 0. By chance means that predictions keep their frequencies but do not depend on
        the label (Cohen's kappa).
        """
        if not self.target.task.has_classes:
            return 0.0, 0.0, 0.0
        predicted, count = self.last.argmax(1), self.last.shape[1]
        right = float((predicted == self.y).double().mean())
        frequencies = [torch.bincount(values, minlength=count) / len(self.y) for values in (predicted, self.y)]
        chance = float(frequencies[0] @ frequencies[1])
        error = math.sqrt(max(chance * (1 - chance), 1 / len(self.y)) / len(self.y))
        return right, chance, (right - chance) / error


@contextlib.contextmanager
def catching() -> Iterator[list[str]]:
    """Collect the message of an error that a network raises in this block."""
    failure: list[str] = []
    try:
        yield failure
    except _NETWORK_ERRORS as error:
        if is_out_of_memory(error):
            raise
        failure.append(" ".join(str(error).split()))
