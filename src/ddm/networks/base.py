"""What the built-in networks share: a spec that rebuilds them, features, and a linear classifier."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ddm.errors import InputError
from ddm.networks.initialise import initialise
from ddm.networks.options import image_shape, whole


class Network(nn.Module, ABC):
    """Maps inputs (b, C, H, W) to logits (b, classes): `classifier(features(x))`.

    `spec` is plain JSON and holds everything that the network was built from, the seed of its initial weights
    included, so `from_spec(network.spec)` is the same network with the same initial weights.

    A subclass makes its layers inside `with self.building():` and defines `embed`.
    """

    learning_rate = 0.1
    """Of plain SGD, where a recipe gives none."""

    spec: dict[str, Any]
    classifier: nn.Linear

    def __init__(self, name: str, shape: Sequence[int], classes: int, *, init: str, seed: int, **options: Any) -> None:
        super().__init__()
        self.shape = image_shape(shape)
        self.classes = whole("classes", classes)
        self.spec = {
            "name": name,
            "shape": list(self.shape),
            "classes": self.classes,
            **options,
            "init": init,
            "seed": whole("seed", seed, least=0, most=2**63 - 1),
        }

    @contextmanager
    def building(self) -> Iterator[None]:
        """Layers made inside get the weights that `spec` says; the global random generator is unchanged."""
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own when made
            yield
        initialise(self, self.spec["init"], self.spec["seed"])

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Features (b, F) of inputs (b, C, H, W)."""

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (b, F) of inputs (b, C, H, W)."""
        if x.ndim != 4 or x.shape[1:] != self.shape:
            expected = ", ".join(str(size) for size in self.shape)
            raise InputError(f"give this network inputs of shape (b, {expected}), not {tuple(x.shape)}.")
        return self.embed(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, classes) of inputs (b, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits
