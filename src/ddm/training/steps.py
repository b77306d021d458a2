"""The optimizer's steps between two checkpoints, as the recorder saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ddm.compute.validation import is_finite


@dataclass(frozen=True)
class TensorSteps:
    """Sums over the steps of one parameter tensor (``ddm.training.optimizers``).

    rate:      Σ η, in units of the gradient of the mean loss
    coupled:   Σ η × weight decay that is added to the gradient
    decoupled: Σ η × weight decay that is subtracted from the parameters
    epsilon:   Σ ε of the divisor D, over ``count`` steps
    count:     number of steps in which the tensor had a gradient
    """

    rate: float = 0.0
    coupled: float = 0.0
    decoupled: float = 0.0
    epsilon: float = 0.0
    count: int = 0

    def __add__(self, other: TensorSteps) -> TensorSteps:
        return TensorSteps(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class Steps:
    """The steps of all parameter tensors between two checkpoints.

    tensors:   the sums of each tensor, by name; a tensor without a step is left out
    scaled:    True if the optimizer divides each parameter's steps by a value of its own
    optimizer: the name of the optimizer's class
    """

    tensors: Mapping[str, TensorSteps]
    scaled: bool = False
    optimizer: str = ""

    def __add__(self, other: Steps) -> Steps:
        names = [*self.tensors, *(name for name in other.tensors if name not in self.tensors)]
        none = TensorSteps()
        merged = {name: self.tensors.get(name, none) + other.tensors.get(name, none) for name in names}
        return replace(other, tensors=merged, scaled=self.scaled or other.scaled)

    def rescaled(self, factor: float) -> Steps:
        """The same steps with every rate multiplied by ``factor``."""
        changed = {name: replace(one, rate=factor * one.rate) for name, one in self.tensors.items()}
        return replace(self, tensors=changed)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        sums = {name: [getattr(one, each.name) for each in fields(one)] for name, one in self.tensors.items()}
        return {"tensors": sums, "scaled": self.scaled, "optimizer": self.optimizer}

    @classmethod
    def from_json(cls, value: Any) -> Steps:
        """The steps that ``to_json`` wrote. Raises ValueError, KeyError or TypeError if they are damaged."""
        tensors = {str(name): TensorSteps(*sums) for name, sums in value["tensors"].items()}
        for one in tensors.values():
            numbers = (one.rate, one.coupled, one.decoupled, one.epsilon)
            if type(one.count) is not int or not all(is_finite(number) and number >= 0 for number in numbers):
                raise ValueError("the learning rates are not positive numbers")
        if type(value["scaled"]) is not bool or type(value["optimizer"]) is not str:
            raise ValueError("the optimizer's description is damaged")
        return cls(tensors, value["scaled"], value["optimizer"])
