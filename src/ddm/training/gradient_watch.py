"""See whether gradients change between the backward pass and the optimizer's step, as clipping changes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

_UNCHANGED_STEPS = 8
"""After this many steps without a change, only the smallest gradient is watched."""

_ROUNDING = 1e-6
"""Relative difference of norms up to which a gradient counts as unchanged."""


class GradientWatch:
    """Compares the gradients of each step with those that the backward pass left.

    At first it measures all gradients. Where nothing changes them, it soon watches only the smallest one, which costs
    next to nothing, until that one changes: clipping and unscaling change all gradients at once.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._norms: dict[Tensor, Tensor] = {}
        self._unchanged = 0
        self._watch(self._parameters)

    @property
    def found_none(self) -> bool:
        """True if a backward pass that begins now finds no gradients to add to."""
        return not any(parameter.grad is not None and parameter.grad.any() for parameter in self._norms)

    def factor(self) -> float:
        """The norm of the gradients now, divided by their norm after the backward pass. Called before each step."""
        known = [(norm, parameter.grad) for parameter, norm in self._norms.items() if parameter.grad is not None]
        before, now = _norm([norm for norm, _ in known]), _norm([_length(gradient) for _, gradient in known])
        if abs(now - before) <= _ROUNDING * before:
            self._unchanged += 1
            if self._unchanged == _UNCHANGED_STEPS:
                self._watch_smallest()
            return 1.0
        self._unchanged = 0
        if len(self._handles) < len(self._parameters):
            self._watch(self._parameters)
        return now / before if before > 0 else 1.0

    def forget(self) -> None:
        """Forget the gradients of the step that was made."""
        self._norms = {}

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, parameters: Sequence[nn.Parameter]) -> None:
        self.close()
        self._handles = [parameter.register_post_accumulate_grad_hook(self._after_gradient) for parameter in parameters]

    def _watch_smallest(self) -> None:
        nonzero = [one for one in self._parameters if one.grad is not None and one.grad.any()]
        self._watch(sorted(nonzero, key=lambda parameter: parameter.numel())[:1])

    def _after_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._norms[parameter] = _length(parameter.grad)


def _length(gradient: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(gradient)
    return length


def _norm(norms: Sequence[Tensor]) -> float:
    return math.hypot(*(float(norm) for norm in norms))
