"""Save and load networks as safetensors files: the weights, and the spec as JSON in the metadata. No pickle.

A weighted sum of networks has one spec, because its networks have the same architecture. Its tensors are named as in
its ``state_dict``: ``weights``, and ``networks.0.…``, ``networks.1.…`` for each network.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ddm.compute.tensors import read_finite, read_metadata, write_tensors
from ddm.errors import InputError
from ddm.networks.base import Network
from ddm.networks.registry import from_spec, outline
from ddm.networks.weighted_sum import WeightedSum

_SUM = "weighted_sum"
"""Metadata key of the spec of a weighted sum's networks."""


def save(network: nn.Module, path: str | Path) -> None:
    """Write a built-in network, or a weighted sum of built-in networks, to `path` atomically."""
    parts = list(network.networks) if isinstance(network, WeightedSum) else [network]
    specs = [part.spec for part in parts if isinstance(part, Network)]
    if not specs or len(specs) < len(parts) or any(spec != specs[0] for spec in specs):
        raise InputError(
            f"only built-in networks can be saved: save the state_dict of {type(network).__name__} yourself."
        )
    kind = _SUM if isinstance(network, WeightedSum) else "network"
    write_tensors(Path(path), network.state_dict(), {kind: specs[0]})


def save_weights(network: nn.Module, path: str | Path) -> None:
    """Write the weights of any network to `path` atomically, for `load_state_dict`."""
    write_tensors(Path(path), {name: tensor.clone() for name, tensor in network.state_dict().items()})


def load(path: str | Path) -> Network | WeightedSum:
    """Load the network that `save` wrote to `path`: on the CPU, in evaluation mode, with its dtype."""
    tensors = read_finite(Path(path))
    try:
        metadata = read_metadata(Path(path))
        if _SUM in metadata:
            return _load_sum(metadata[_SUM], tensors)
        spec = metadata["network"]
        _check_shapes(tensors, _shapes(outline(spec).state_dict()))
        return _load_state(from_spec(spec), tensors)
    except (KeyError, TypeError, RuntimeError, InputError):
        raise InputError(f"'{path}' contains no network: give a file that ddm.networks.save wrote.") from None


def _load_sum(spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WeightedSum:
    count, shapes = len(tensors["weights"]), _shapes(outline(spec).state_dict())
    if not count or len(tensors) != 1 + count * len(shapes):
        raise KeyError("the tensors of each network")
    prefixes = [f"networks.{number}." for number in range(count)]
    every = {prefix + name: shape for prefix in prefixes for name, shape in shapes.items()}
    _check_shapes(tensors, {"weights": (count,), **every})
    first = from_spec(spec)
    networks = [
        _load_state(copy.deepcopy(first), {name: tensors[prefix + name] for name in shapes}) for prefix in prefixes
    ]
    return WeightedSum(networks, tensors["weights"].tolist())


def _load_state(network: Network, state: Mapping[str, Tensor]) -> Network:
    network.to(state["classifier.weight"].dtype).load_state_dict(state)
    return network.eval()


def _check_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ``KeyError`` for tensors of another network, before memory is allocated for it."""
    if _shapes(tensors) != shapes:
        raise KeyError("the tensors of this spec")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
