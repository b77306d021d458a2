"""Save and load networks as safetensors files: the weights, and the spec as JSON in the metadata. No pickle."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from ddm.compute.tensors import read_finite, read_metadata, write_tensors
from ddm.errors import InputError
from ddm.networks.base import Network
from ddm.networks.registry import from_spec, outline


def save(network: nn.Module, path: str | Path) -> None:
    """Write a built-in network to `path` atomically."""
    if not isinstance(network, Network):
        raise InputError(
            f"only built-in networks can be saved: save the state_dict of {type(network).__name__} yourself."
        )
    write_tensors(Path(path), network.state_dict(), {"network": network.spec})


def load(path: str | Path) -> Network:
    """Load the network that `save` wrote to `path`: on the CPU, in evaluation mode, with its dtype."""
    tensors = read_finite(Path(path))
    try:
        spec = read_metadata(Path(path))["network"]
        if _shapes(outline(spec).state_dict()) != _shapes(tensors):  # checked before memory is allocated
            raise KeyError("the tensors of this spec")
        network = from_spec(spec)
        network.to(tensors["classifier.weight"].dtype).load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, InputError):
        raise InputError(f"'{path}' contains no network: give a file that ddm.networks.save wrote.") from None
    return network.eval()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
