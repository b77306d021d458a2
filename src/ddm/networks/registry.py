"""The built-in networks by name."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ddm.errors import InputError
from ddm.networks.alexnet import AlexNet
from ddm.networks.base import Network
from ddm.networks.convnet import ConvNet
from ddm.networks.options import one_of
from ddm.networks.resnet18ap import ResNet18AP
from ddm.networks.simplevit import SimpleViT

NETWORKS: dict[str, type[Network]] = {
    "convnet": ConvNet,
    "alexnet": AlexNet,
    "resnet18ap": ResNet18AP,
    "simplevit": SimpleViT,
}


def names() -> list[str]:
    """The names that `build` knows."""
    return list(NETWORKS)


def build(name: str, shape: Sequence[int], classes: int, **options: Any) -> Network:
    """The network called `name` for inputs of `shape` (C, H, W), with the options of its class."""
    network = NETWORKS[one_of("network", name, NETWORKS)]
    parameters = inspect.signature(network).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        one_of(f"options of {name}", option, known)
    return network(shape=shape, classes=classes, **options)


def from_spec(spec: Mapping[str, Any]) -> Network:
    """The network that `spec` was taken from, with its initial weights."""
    missing = [key for key in ("name", "shape", "classes") if key not in spec]
    if missing:
        raise InputError(f"give a network spec that has {' and '.join(missing)}.")
    return build(**spec)
