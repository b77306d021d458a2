"""Mean and standard deviation of the inputs that a training saw, which show whether other inputs have their scale."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_BATCHES = 64
"""Maximum number of batches that are measured."""


class InputMoments:
    """Moments over all values of the first batches of a training."""

    def __init__(self) -> None:
        self._batches: list[Tensor] = []

    def measure(self, arguments: tuple[Any, ...]) -> Tensor | None:
        """Mean and mean square ``(2,)`` of a batch; None if it is not needed or not a tensor of real numbers.

        arguments: those of the network, of which the first is the batch
        """
        inputs = arguments[0] if arguments else None
        if len(self._batches) >= _BATCHES or not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            return None
        values = inputs.detach().float()
        return torch.stack([values.mean(), values.square().mean()])

    def add(self, measured: Tensor | None) -> None:
        """Add a batch that ``measure`` returned."""
        if measured is not None:
            self._batches.append(measured)

    @property
    def known(self) -> bool:
        """True if a batch was measured."""
        return bool(self._batches)

    @property
    def mean(self) -> float:
        """Mean over all values of all batches."""
        return self._average[0]

    @property
    def deviation(self) -> float:
        """Standard deviation over all values of all batches."""
        mean, square = self._average
        return math.sqrt(max(square - mean**2, 0.0))

    @property
    def _average(self) -> tuple[float, float]:
        mean, square = torch.stack(self._batches).double().mean(0).tolist()
        return mean, square
