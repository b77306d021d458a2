"""The built-in networks by name."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ddm.compute.memory import check_memory
from ddm.errors import InputError
from ddm.networks.alexnet import AlexNet
from ddm.networks.base import Network
from ddm.networks.convnet import ConvNet
from ddm.networks.mlp import MLP
from ddm.networks.options import check_choice
from ddm.networks.resnet18ap import ResNet18AP
from ddm.networks.simplevit import SimpleViT
from ddm.networks.text_transformer import TextTransformer

NETWORKS: dict[str, type[Network]] = {
    "convnet": ConvNet,
    "alexnet": AlexNet,
    "resnet18ap": ResNet18AP,
    "simplevit": SimpleViT,
    "mlp": MLP,
    "text-transformer": TextTransformer,
}


def names() -> list[str]:
    """The names of all built-in networks."""
    return list(NETWORKS)


def learning_rate(network: nn.Module | str) -> float:
    """The default learning rate of a network, or of the built-in network of this name."""
    if isinstance(network, str):
        return NETWORKS.get(network, Network).learning_rate
    return network.learning_rate if isinstance(network, Network) else Network.learning_rate


def accepted(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that the network `name` has."""
    known = inspect.signature(NETWORKS[name]).parameters if name in NETWORKS else {}
    return {option: value for option, value in options.items() if option in known}


def build(name: str, shape: Sequence[int], classes: int, **options: Any) -> Network:
    """Build the network `name` for inputs of `shape`. `options` are the keyword arguments of its class."""
    network = NETWORKS[check_choice("network", name, NETWORKS)]
    known = {p.name: p for p in inspect.signature(network).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for option in options:
        check_choice(f"options of {name}", option, known)
    network.check_shape(shape)
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise InputError(f"{name} needs the option {option}: give it a value.")
    try:
        with torch.device("meta"):
            outlined = network(shape=shape, classes=classes, **options)
    except RuntimeError as error:
        raise InputError(f"a {name} with these options cannot be built: choose smaller values ({error}).") from None
    size = sum(tensor.nbytes for tensor in (*outlined.parameters(), *outlined.buffers()))
    check_memory(size, f"a {name} with these options", "choose smaller values")
    return outlined if torch.get_default_device().type == "meta" else network(shape=shape, classes=classes, **options)


def outline(spec: Mapping[str, Any]) -> Network:
    """Build the network of a `spec` on torch's meta device: it has shapes, but its tensors need no memory."""
    with torch.device("meta"):
        return from_spec(spec)


def from_spec(spec: Mapping[str, Any]) -> Network:
    """Build the network of a `spec`, with the same initial weights."""
    if not isinstance(spec, Mapping):
        raise InputError("give a network spec as a table of option names and values.")
    missing = [key for key in ("name", "shape", "classes") if key not in spec]
    if missing:
        raise InputError(f"a network spec must also have {' and '.join(missing)}: add what is missing.")
    return build(**spec)
