"""Describe how each of torch's optimizers turns a gradient into a step.

An optimizer moves a parameter with gradient g by about  η g / D  in one step, where momentum's later repetitions of
the gradient count as part of the step:

    optimizer     rate η                     divisor D (one for each parameter)
    sgd           lr (1 − dampening)/(1 − μ)   1
    adam, adamw   lr                         √v̂ + ε
    nadam         lr                         √v̂ + ε
    radam         lr                         (√v̂ + ε)/r, after its first steps
    rmsprop       lr/(1 − μ)                 √v + ε
    adagrad       lr/(1 + (t − 1) decay)     √(Σ g²) + ε

Weight decay is coupled (added to the gradient, and so divided by D as well) or decoupled (subtracted from the
parameters, as AdamW does).

To add an optimizer, write a subclass of ``Optimizer`` and add it to ``OPTIMIZERS``. The recorder, the recipe, the
damping and the plan need no change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ddm.errors import InputError

if TYPE_CHECKING:
    from ddm.training.recipe import Recipe

Options = Mapping[str, Any]
"""The options of one of torch's parameter groups, such as ``lr``."""

Moment = tuple[Tensor, float]
"""A tensor and a factor. Their product is D² without ε, elementwise."""


class Optimizer(ABC):
    """One of torch's optimizers: how to build it, and how to read what a step of it did."""

    kinds: ClassVar[tuple[type[torch.optim.Optimizer], ...]]
    """The classes of torch that this describes."""

    stored: ClassVar[frozenset[str]]
    """Names of the values that torch's optimizer stores for a parameter between steps."""

    learning_rate: ClassVar[float | None] = None
    """The learning rate of a recipe that has none; None: the network's, which is for SGD."""

    uses_momentum: ClassVar[bool] = False
    """True if the optimizer uses the recipe's momentum."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with settings that this optimizer does not have."""
        if recipe.momentum and not cls.uses_momentum:
            raise InputError(f"{cls.__name__} does not use the recipe's momentum: leave momentum at 0.")
        if recipe.nesterov and not (issubclass(cls, SGD) and recipe.momentum):
            raise InputError("Nesterov's momentum needs SGD with momentum: use sgd and give a momentum above 0.")

    @classmethod
    def build(cls, parameters: Sequence[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
        """Create torch's optimizer with the settings of a recipe."""
        momentum: dict[str, Any] = {"momentum": recipe.momentum} if cls.uses_momentum else {}
        momentum |= {"nesterov": True} if recipe.nesterov else {}
        kind: Any = cls.kinds[0]
        built: torch.optim.Optimizer = kind(
            list(parameters), lr=recipe.rate, weight_decay=recipe.weight_decay, **momentum
        )
        return built

    @classmethod
    @abstractmethod
    def rate(cls, options: Options, state: Options) -> float:
        """η of the step just made, for a parameter with this state in a group with these options."""

    @classmethod
    def moment(cls, options: Options, state: Options) -> Moment | None:
        """D² of the step just made, without ε; None if the optimizer does not scale each parameter's steps."""
        return None

    @classmethod
    def ignores_step(cls, options: Options, state: Options) -> bool:
        """True for a step that moves the parameter by so little that it is left out."""
        return False

    @classmethod
    def scales_parameters(cls) -> bool:
        """True if the steps of each parameter are divided by a value of its own."""
        return cls.moment.__func__ is not Optimizer.moment.__func__  # type: ignore[attr-defined]

    @classmethod
    def decouples_decay(cls, options: Options) -> bool:
        """True if weight decay does not pass through the gradient."""
        return bool(options.get("decoupled_weight_decay", False))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov's or the usual one."""

    kinds = (torch.optim.SGD,)
    stored = frozenset({"momentum_buffer"})
    uses_momentum = True

    @classmethod
    def rate(cls, options: Options, state: Options) -> float:
        """lr (1 − dampening)/(1 − μ). Without momentum torch ignores dampening."""
        momentum, dampening = options["momentum"], options["dampening"] if options["momentum"] else 0.0
        return float(options["lr"] * (1 - dampening) / (1 - momentum))


class _Adaptive(Optimizer):
    """An optimizer with Adam's moments."""

    learning_rate = 0.001

    @classmethod
    def rate(cls, options: Options, state: Options) -> float:
        """lr. Adam's momentum averages gradients, so it does not change the sum of the steps."""
        return float(options["lr"])

    @classmethod
    def moment(cls, options: Options, state: Options) -> Moment | None:
        """v̂, the second moment with its bias corrected, or its maximum so far with amsgrad."""
        moment = state["max_exp_avg_sq" if options.get("amsgrad") else "exp_avg_sq"]
        return moment, 1 / (1 - float(options["betas"][1]) ** float(state["step"]))


class Adam(_Adaptive):
    """Adam. Weight decay is added to the gradient, unlike in AdamW."""

    kinds = (torch.optim.Adam,)
    stored = frozenset({"step", "exp_avg", "exp_avg_sq"})


class AdamW(_Adaptive):
    """AdamW: Adam with decoupled weight decay."""

    kinds = (torch.optim.AdamW,)
    stored = Adam.stored

    @classmethod
    def decouples_decay(cls, options: Options) -> bool:
        """True: AdamW subtracts lr × decay × parameter."""
        return True


class NAdam(_Adaptive):
    """NAdam: Adam with Nesterov momentum."""

    kinds = (torch.optim.NAdam,)
    stored = frozenset({"step", "mu_product", "exp_avg", "exp_avg_sq"})


class RAdam(_Adaptive):
    """RAdam: Adam whose first steps do not divide by √v̂ and are therefore small."""

    kinds = (torch.optim.RAdam,)
    stored = Adam.stored

    @classmethod
    def moment(cls, options: Options, state: Options) -> Moment | None:
        """v̂/r², with r the rectification of the variance."""
        moment, factor = super().moment(options, state) or (state["exp_avg_sq"], 1.0)
        return moment, factor / cls._rectification(options, state)

    @classmethod
    def ignores_step(cls, options: Options, state: Options) -> bool:
        """True while the variance is not rectified."""
        return cls._rectification(options, state) <= 0

    @staticmethod
    def _rectification(options: Options, state: Options) -> float:
        """r² of the paper's Eq. 13; 0 while the approximated length ρ_t of the average is at most 5."""
        beta, step = float(options["betas"][1]), float(state["step"])
        longest = 2 / (1 - beta) - 1
        length = longest - 2 * step * beta**step / (1 - beta**step)
        if length <= 5:
            return 0.0
        return float((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))


class RMSprop(Optimizer):
    """RMSprop."""

    learning_rate = 0.001
    kinds = (torch.optim.RMSprop,)
    stored = frozenset({"step", "square_avg", "momentum_buffer"})
    uses_momentum = True

    @classmethod
    def rate(cls, options: Options, state: Options) -> float:
        """lr/(1 − μ)."""
        return float(options["lr"] / (1 - options["momentum"]))

    @classmethod
    def moment(cls, options: Options, state: Options) -> Moment | None:
        """The average of squared gradients, minus the square of the average gradient if centered."""
        if options["centered"]:
            return state["square_avg"] - state["grad_avg"].square(), 1.0
        return state["square_avg"], 1.0


class Adagrad(Optimizer):
    """Adagrad."""

    learning_rate = 0.01
    kinds = (torch.optim.Adagrad,)
    stored = frozenset({"step", "sum"})

    @classmethod
    def rate(cls, options: Options, state: Options) -> float:
        """lr/(1 + (t − 1) decay)."""
        return float(options["lr"] / (1 + (float(state["step"]) - 1) * options["lr_decay"]))

    @classmethod
    def moment(cls, options: Options, state: Options) -> Moment | None:
        """The sum of squared gradients."""
        return state["sum"], 1.0


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}
"""Every optimizer, by its name in a recipe."""


def describing(optimizer: torch.optim.Optimizer) -> type[Optimizer] | None:
    """The description of one of torch's optimizers; None if there is none, or if it maximises."""
    if any(group.get("maximize") for group in optimizer.param_groups):
        return None
    exact = [known for known in OPTIMIZERS.values() if type(optimizer) in known.kinds]
    return exact[0] if exact else None
