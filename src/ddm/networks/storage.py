"""Networks as safetensors files: the weights, with the spec as JSON in the metadata. Nothing is pickled."""

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from ddm.errors import InputError
from ddm.networks.base import Network
from ddm.networks.registry import from_spec

KEY = "ddm.network"


def save(network: nn.Module, path: str | Path) -> None:
    """Write a built-in network to `path`, whole or not at all."""
    if not isinstance(network, Network):
        raise InputError(
            f"Save the state_dict of {type(network).__name__} yourself, as only built-in ones have a spec."
        )
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"Create the folder {path.parent} before saving a network into it.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    try:
        # Not save_file, which makes files that only their owner can read.
        temporary.write_bytes(to_bytes(tensors, metadata={KEY: json.dumps(network.spec)}))
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"Give a path that can be written instead of {path} ({error}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | Path) -> Network:
    """The network that `save` wrote to `path`, on the CPU, with the dtype it was saved with."""
    if not Path(path).is_file():
        raise InputError(f"Give the path of a saved network, because {path} is not a file.")
    try:
        with safe_open(path, framework="pt") as file:
            spec = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        network = from_spec(spec).to(tensors["classifier.weight"].dtype)
        network.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Give a file written by ddm.networks.save, because {path} is broken or something else."
        ) from error
    return network
