"""The recipe 𝒜: how a target is trained."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddm.compute.validation import SEEDS, check_fields
from ddm.errors import InputError
from ddm.training import augmentation
from ddm.training.optimizers import OPTIMIZERS

SCHEDULES = ("constant", "cosine", "step")

_LATER_FIELDS = ("amp", "nesterov", "warmup", "clip_norm")
"""Fields that recipes of older runs lack. Files hold them only if they are on, so that hashes stay the same."""


@dataclass(frozen=True)
class Recipe:
    """How the target is trained. The recipe and θ_0 are enough to train it again exactly.

    epochs:           passes over the training set
    lr:               learning rate η_a, before any schedule or warm-up; None uses the network's default for SGD, and
                      torch's default of every other optimizer
    batch_size:       samples per step
    momentum:         momentum of SGD; 0 is plain gradient descent
    weight_decay:     multiple of the parameters that is added to their gradient
    schedule:         constant, cosine (to 0), or step (× 0.1 after half of the steps, × 0.01 after three quarters)
    augment:          none, flip, shift or flip-shift
    checkpoint_every: optimizer steps between checkpoints; None stores one after each epoch
    seed:             random seed of batch order, augmentation and dropout (the network's own seed sets θ_0)
    optimizer:        sgd, adam, adamw, nadam, radam, rmsprop or adagrad
    amp:              automatic mixed precision: forward passes use bfloat16 where torch considers it safe
    nesterov:         Nesterov's momentum instead of the usual one; only for SGD with momentum
    warmup:           epochs in which the learning rate grows linearly to ``lr``; the schedule covers the epochs after
    clip_norm:        maximum norm of the gradient of all parameters, to which longer ones are scaled; None: no maximum
    """

    epochs: int = 30
    lr: float | None = None
    batch_size: int = 64
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    augment: str = "none"
    checkpoint_every: int | None = None
    seed: int = 0
    optimizer: str = "sgd"
    amp: bool = False
    nesterov: bool = False
    warmup: int = 0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        every = 1 if self.checkpoint_every is None else self.checkpoint_every
        if self.epochs < 1 or self.batch_size < 1 or every < 1:
            raise InputError("epochs, batch size and steps between checkpoints must each be at least 1.")
        if not ((self.lr is None or self.lr > 0) and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise InputError("a recipe needs lr > 0, 0 ≤ momentum < 1 and weight decay ≥ 0.")
        if not 0 <= self.warmup < self.epochs:
            raise InputError(f"give a warm-up from 0 to {self.epochs - 1} epochs, fewer than the training has.")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise InputError("the norm to clip gradients to must be above 0: leave it out to train without clipping.")
        for what, known in (("schedule", SCHEDULES), ("optimizer", OPTIMIZERS)):
            if getattr(self, what) not in known:
                raise InputError(f"there is no {what} '{getattr(self, what)}': use one of {', '.join(known)}.")
        OPTIMIZERS[self.optimizer].check(self)
        augmentation.check(self.augment)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON values, without later fields that are off, because recipes of older runs lack them."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER_FIELDS or value}

    def with_lr(self, default: float) -> Recipe:
        """The same recipe; if it has no learning rate, with that of its optimizer, or else with ``default``."""
        usual = OPTIMIZERS[self.optimizer].learning_rate
        return replace(self, lr=default if usual is None else usual) if self.lr is None else self

    def with_order(self, order: int) -> Recipe:
        """The same recipe with another batch order; order 0 is its own. Seeds begin again at 0 after the largest."""
        return replace(self, seed=(self.seed + order) % SEEDS)

    @property
    def rate(self) -> float:
        """``lr``, for code that needs a number."""
        if self.lr is None:
            raise InputError("the recipe has no learning rate: give lr.")
        return self.lr

    def lr_at(self, step: int, total: int) -> float:
        """Learning rate of step ``step`` of ``total``."""
        warmup = self.warmup * total // self.epochs
        if step < warmup:
            return self.rate * (step + 1) / warmup
        progress = (step - warmup) / (total - warmup)
        if self.schedule == "cosine":
            return self.rate * 0.5 * (1 + math.cos(math.pi * progress))
        if self.schedule == "step":
            return self.rate * (0.01 if progress >= 0.75 else 0.1 if progress >= 0.5 else 1.0)
        return self.rate
