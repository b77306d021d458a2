"""The optimizers that a recipe can name, and the effective learning rate of their steps.

The effective learning rate of a step is how far a gradient of 1 moves a parameter, now or in later steps:

    sgd     η / (1 − μ)      momentum μ repeats every gradient in later steps
    adam    η / (√v̂ + ε)     each parameter has its own

Its sum over a training is how far a constant gradient of 1 would move a parameter if there were no curvature. The
damping (``ddm.curvature.damping``) is the inverse of this sum, plus the weight decay.

To add an optimizer, write a subclass of ``Optimizer`` and add it to ``OPTIMIZERS``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ddm.errors import InputError
from ddm.networks.state import State, check_state

if TYPE_CHECKING:
    from ddm.training.recipe import Recipe

_STATE, _RATES = "optimizer.", "reach."
"""Prefixes of tensor names in files: the state of torch's optimizer, and the effective rates of each parameter."""


class Optimizer(ABC):
    """torch's optimizer of one training, and the sum of its effective learning rates so far.

    total_rate:      the sum; its mean over the parameters if each has its own
    parameter_rates: the sum for each parameter by name; None if all have the same
    """

    stored: ClassVar[frozenset[str]]
    """Names of the values that torch's optimizer stores for a parameter between steps."""

    uses_momentum: ClassVar[bool] = True
    """True if the optimizer uses the recipe's momentum."""

    scales_parameters: ClassVar[bool] = False
    """True if each parameter has an effective learning rate of its own."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], recipe: Recipe) -> None:
        self.parameters, self.recipe = dict(parameters), recipe
        self.torch = self.build(list(parameters.values()), recipe)
        self.total_rate = 0.0
        self.parameter_rates: State | None = None
        if self.scales_parameters:
            self.parameter_rates = {name: torch.zeros_like(p) for name, p in parameters.items()}

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with settings that this optimizer does not have."""
        if recipe.momentum and not cls.uses_momentum:
            raise InputError(f"{cls.__name__} does not use the recipe's momentum: leave momentum at 0.")

    @staticmethod
    @abstractmethod
    def build(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
        """Create torch's optimizer with the settings of a recipe."""

    @classmethod
    @abstractmethod
    def effective_rate(cls, recipe: Recipe, lr: float) -> float:
        """The effective learning rate of a step at ``lr``, before any scale that differs between parameters."""

    @classmethod
    def with_decay(cls, damping: Tensor, recipe: Recipe) -> Tensor:
        """``damping (P,)`` plus the weight decay, which acts like damping because it is part of the gradient."""
        return damping + recipe.weight_decay

    def step(self, lr: float) -> None:
        """Update the parameters by their gradients, and add the step's effective learning rate to the sums."""
        for group in self.torch.param_groups:
            group["lr"] = lr
        self.torch.step()
        self.add_rate(lr)

    def add_rate(self, lr: float) -> None:
        """Add the effective learning rate of the step just made."""
        self.total_rate += self.effective_rate(self.recipe, lr)

    def state(self) -> State:
        """The tensors that a resumed training needs, by their names in files. ``total_rate`` is stored apart."""
        tensors = {f"{_RATES}{name}": rates for name, rates in (self.parameter_rates or {}).items()}
        for index, parameter in enumerate(self.parameters.values()):
            values = self.torch.state[parameter].items()
            tensors |= {f"{_STATE}{index}.{key}": value for key, value in values if value is not None}
        return tensors

    def load(self, tensors: State) -> None:
        """Load the tensors that ``state`` returned, and remove them from ``tensors``.

        Raises ValueError or KeyError if they do not fit.
        """
        for index, parameter in enumerate(self.parameters.values()):
            prefix = f"{_STATE}{index}."
            names = [name for name in tensors if name.startswith(prefix)]
            values = {name.removeprefix(prefix): tensors.pop(name) for name in names}
            self._check_stored(values, parameter)
            self.torch.state[parameter] = {key: value.to(parameter.device) for key, value in values.items()}
        if self.parameter_rates is not None:
            self.parameter_rates = self._check_rates({name: tensors.pop(f"{_RATES}{name}") for name in self.parameters})

    def _check_stored(self, values: State, parameter: nn.Parameter) -> None:
        """Refuse values that torch would not store. It stores all of ``stored``, or none without a gradient."""
        if values.keys() not in (set(), self.stored):
            raise ValueError(f"the optimizer does not store {', '.join(sorted(values))}")
        for key, value in values.items():
            fits = (value.shape, value.dtype) == (parameter.shape, parameter.dtype)
            if not (value.shape == () and value >= 1 if key == "step" else fits):
                raise ValueError(f"the optimizer's {key} belongs to another parameter")

    def _check_rates(self, rates: State) -> State:
        """Return the rates on the device of their parameter, or refuse rates that do not fit the parameters."""
        check_state(rates, {name: tuple(p.shape) for name, p in self.parameters.items()}, "the sum of learning rates")
        if any(rates[name].dtype != parameter.dtype for name, parameter in self.parameters.items()):
            raise ValueError("the sum of learning rates has another type")
        return {name: rates[name].to(parameter.device) for name, parameter in self.parameters.items()}


class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    stored = frozenset({"momentum_buffer"})

    @staticmethod
    def build(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(parameters, recipe.rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)

    @classmethod
    def effective_rate(cls, recipe: Recipe, lr: float) -> float:
        """η / (1 − μ)."""
        return lr / (1 - recipe.momentum)


class Adam(Optimizer):
    """Adam. Weight decay is added to the gradient, unlike in AdamW."""

    stored = frozenset({"step", "exp_avg", "exp_avg_sq"})
    uses_momentum = False
    scales_parameters = True

    @staticmethod
    def build(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
        """torch's Adam."""
        return torch.optim.Adam(parameters, recipe.rate, weight_decay=recipe.weight_decay)

    @classmethod
    def effective_rate(cls, recipe: Recipe, lr: float) -> float:
        """η. Each step divides it by the scale of each parameter."""
        return lr

    def add_rate(self, lr: float) -> None:
        """Add η / (√v̂ + ε) for each parameter that has had a gradient."""
        assert self.parameter_rates is not None
        for name, parameter in self.parameters.items():
            if self.torch.state[parameter]:
                self.parameter_rates[name] += lr / self._scale(parameter)
        total = sum(float(rates.sum()) for rates in self.parameter_rates.values())
        self.total_rate = total / sum(parameter.numel() for parameter in self.parameters.values())

    def _scale(self, parameter: nn.Parameter) -> Tensor:
        """√v̂ + ε, by which Adam divides the step of a parameter."""
        (group,) = self.torch.param_groups
        beta, epsilon, stored = group["betas"][1], group["eps"], self.torch.state[parameter]
        scale: Tensor = (stored["exp_avg_sq"] / (1 - beta ** float(stored["step"]))).sqrt() + epsilon
        return scale


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}
"""Every optimizer, by its name in a recipe."""
