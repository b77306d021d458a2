"""A small network of each kind with inputs that fit it, for tests that do not need the full size."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ddm.networks import NETWORKS, Network, build, names

VOCABULARY = 30

REQUIRED: dict[str, dict[str, Any]] = {"text-transformer": {"vocabulary": VOCABULARY}}
"""Options without a default."""

SMALL: dict[str, dict[str, Any]] = {
    "convnet": {"width": 4},
    "alexnet": {"width": 4},
    "resnet18ap": {"width": 4},
    "simplevit": {"dim": 8, "depth": 2, "heads": 2},
    "mlp": {"width": 8},
    "text-transformer": {"width": 8, "depth": 2, "heads": 2, **REQUIRED["text-transformer"]},
}


def fitting_shape(name: str, image: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image, of a table with its pixels as columns, or of a text with a token per pixel, up to 16."""
    columns = math.prod(image)
    return {"images": image, "tables": (columns,), "token ids": (min(columns, 16),)}[NETWORKS[name].inputs]


def small(name: str, image: tuple[int, ...], classes: int, **options: Any) -> Network:
    """A small network for images of this shape, or for other inputs of a shape that fits."""
    return build(name, fitting_shape(name, image), classes, **{**SMALL[name], **options})


def random_inputs(network: Network, count: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random inputs (count, *shape) that the network takes."""
    rng = torch.Generator().manual_seed(0)
    if network.inputs == "token ids":
        return torch.randint(VOCABULARY, (count, *network.shape), generator=rng)
    return torch.randn(count, *network.shape, generator=rng).to(dtype)


@pytest.fixture(params=names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
