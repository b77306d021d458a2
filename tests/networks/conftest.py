"""A small network of each kind, for tests that do not need the full size."""

from typing import Any

import pytest

from ddm.networks import Network, build, names

SMALL: dict[str, dict[str, Any]] = {
    "convnet": {"width": 4},
    "alexnet": {"width": 4},
    "resnet18ap": {"width": 4},
    "simplevit": {"dim": 8, "depth": 2, "heads": 2},
}


def small(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> Network:
    return build(name, shape, classes, **SMALL[name], **options)


@pytest.fixture(params=names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
