"""Networks as safetensors files: the weights, with the spec as JSON in the metadata. Nothing is pickled."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from ddm.compute.tensors import read_finite, read_metadata, write_tensors
from ddm.errors import InputError
from ddm.networks.base import Network
from ddm.networks.registry import from_spec, outline


def save(network: nn.Module, path: str | Path) -> None:
    """Write a built-in network to `path`, whole or not at all."""
    if not isinstance(network, Network):
        raise InputError(
            f"only built-in networks carry a spec: save the state_dict of {type(network).__name__} yourself."
        )
    write_tensors(Path(path), network.state_dict(), {"network": network.spec})


def load(path: str | Path) -> Network:
    """The network that `save` wrote to `path`, on the CPU, in evaluation mode, with the dtype it was saved with."""
    tensors = read_finite(Path(path))
    try:
        spec = read_metadata(Path(path))["network"]
        if _shapes(outline(spec).state_dict()) != _shapes(tensors):  # before memory is taken for it
            raise KeyError("the tensors of this spec")
        network = from_spec(spec)
        network.to(tensors["classifier.weight"].dtype).load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, InputError):
        raise InputError(f"'{path}' does not hold a network: give a file that ddm.networks.save wrote.") from None
    return network.eval()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
