"""The state of a network, its parameters and persistent buffers by name: copy, load, check and hash it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ddm.errors import InputError

State = dict[str, Tensor]
"""Every parameter and persistent buffer of a network, by name."""


def state_of(network: nn.Module) -> State:
    """A copy of a network's parameters and persistent buffers. A parameter with several names appears once."""
    tensors = dict(network.named_parameters()) | persistent_buffers(network)
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def load_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy ``state`` into a network, in place."""
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    with torch.no_grad():
        for name, value in state.items():
            tensors[name].copy_(value)


def persistent_buffers(network: nn.Module) -> State:
    """The buffers that are part of a network's state, by name."""
    stored = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in stored}


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a network's state, by name."""
    return {name: tuple(tensor.shape) for name, tensor in state_of(network).items()}


def check_state(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Refuse a state with other names or shapes than ``shapes``. The message calls the state ``what``."""
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in (*shapes, *given):
        if given.get(name) != shapes.get(name):
            expected, found = (f"{one.get(name)}" if name in one else "missing" for one in (shapes, given))
            raise InputError(
                f"{what} belongs to another network: {name} is {found} there, but {expected} in this network."
            )


def architecture(network: nn.Module) -> str:
    """A network's class name and the shapes of its parameters and buffers, as one string to compare networks by."""
    shapes = [f"{name}{list(tensor.shape)}" for name, tensor in state_of(network).items()]
    return f"{type(network).__name__}: {' '.join(shapes)}"


def fingerprint_of(network: str, state: State) -> str:
    """Hash of an architecture, as ``architecture`` describes it, and of a state."""
    return hashlib.sha256(f"{network} {hash_of_state(state)}".encode()).hexdigest()


def hash_of_state(state: State) -> str:
    """Hash of all names and values of a state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
