"""The base class of the built-in networks: a spec to rebuild them from, features, and a linear classifier."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ddm.errors import InputError
from ddm.networks.initialise import initialise
from ddm.networks.options import check_integer, check_shape


class Network(nn.Module, ABC):
    """Maps inputs (b, *shape) to logits (b, classes): `classifier(features(x))`.

    `spec` is plain JSON. It holds the name, all options and the seed of the initial weights, so
    `from_spec(network.spec)` builds the same network with the same initial weights.

    A subclass creates its layers inside `with self.building():` and defines `embed`. Its outputs are
    `scale * classifier(features) + shift`. Networks for tables and texts have these two as options, the standard
    deviation and mean of a number to predict: then the network learns as fast as from standardised numbers.
    """

    learning_rate = 0.1
    """The learning rate that training uses if the recipe has none."""

    inputs = "images"
    """What the network takes: images of shape (C, H, W), tables of shape (F,), or token ids of shape (T,)."""

    spec: dict[str, Any]
    classifier: nn.Linear
    scale, shift = 1.0, 0.0

    def __init__(self, name: str, shape: Sequence[int], classes: int, *, init: str, seed: int, **options: Any) -> None:
        super().__init__()
        self.shape = self.check_shape(shape)
        self.classes = check_integer("classes", classes)
        self.spec = {
            "name": name,
            "shape": list(self.shape),
            "classes": self.classes,
            **options,
            "init": init,
            "seed": check_integer("seed", seed, minimum=0, maximum=2**63 - 1),
        }
        self.scale, self.shift = (float(options.get(name, getattr(self, name))) for name in ("scale", "shift"))
        self.learning_rate = type(self).learning_rate / self.scale**2  # gradients of a squared error grow with both

    @classmethod
    def check_shape(cls, shape: Any) -> tuple[int, ...]:
        """Return the shape of one input as a tuple, or refuse it if this network takes other inputs."""
        return check_shape(cls.__name__, cls.inputs, shape)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Create layers inside this context. On exit all weights are initialised as `spec` says.

        The global random generator stays unchanged.
        """
        with torch.random.fork_rng(devices=[]):  # torch's layers draw initial weights from the global generator
            yield
        initialise(self, self.spec["init"], self.spec["seed"])

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Features (b, F) of inputs (b, *shape)."""

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (b, F) of inputs (b, *shape)."""
        if x.ndim != 1 + len(self.shape) or x.shape[1:] != self.shape:
            expected = ", ".join(str(size) for size in self.shape)
            raise InputError(f"give this network inputs of shape (b, {expected}), not {tuple(x.shape)}.")
        return self.embed(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, classes) of inputs (b, *shape)."""
        return self.outputs(self.features(x))

    def outputs(self, features: Tensor) -> Tensor:
        """Logits, or predicted numbers, (b, classes) of features (b, F)."""
        logits: Tensor = self.classifier(features)
        return logits if (self.scale, self.shift) == (1.0, 0.0) else self.scale * logits + self.shift


def check_scaling(scale: float, shift: float) -> dict[str, float]:
    """The options `scale` and `shift` of a network; refused if they are no usable numbers."""
    for name, value in (("scale", scale), ("shift", shift)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise InputError(f"give {name} as a number, not {value!r}.")
    if scale <= 0:
        raise InputError(f"give scale as a number above 0, not {scale!r}.")
    return {"scale": float(scale), "shift": float(shift)}
