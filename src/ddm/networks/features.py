"""Penultimate features of any network, and its last linear layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddm.data.inputs import Inputs, X, arguments, call
from ddm.errors import InputError
from ddm.networks.base import Network


def penultimate(network: nn.Module, x: X, outputs: Callable[[nn.Module, X], Any] = call) -> Tensor:
    """Features (b, F) of inputs `x` (b, ...): the inputs of the last linear layer.

    Built-in networks have a method for them. For any other module they are the input of the last `nn.Linear` that
    the forward pass calls, or the outputs of the module if it calls none. Features of each token are averaged.

    outputs: calls the network
    """
    if isinstance(network, Network):
        args, kwargs = arguments(x)
        return network.features(*args, **kwargs)
    found, calls = _linear_calls(network, x, outputs)
    features: Tensor = calls[-1][1] if calls else found
    positions = isinstance(x, Inputs) and features.dim() == 3
    return features.mean(1) if positions else features.reshape(len(x), -1)


def head_parameters(network: nn.Module, x: X, outputs: Callable[[nn.Module, X], Any] = call) -> list[str]:
    """Names of the parameters of the last `nn.Linear` that the forward pass of inputs `x` calls."""
    with torch.no_grad():
        _, calls = _linear_calls(network, x, outputs)
    if not calls:
        raise InputError("the network calls no linear layer, so it has no head: give names of parameters instead.")
    own = {id(parameter) for parameter in calls[-1][0].parameters()}
    return [name for name, parameter in network.named_parameters() if id(parameter) in own]


def _linear_calls(
    network: nn.Module, x: X, outputs: Callable[[nn.Module, X], Any]
) -> tuple[Any, list[tuple[nn.Module, Tensor]]]:
    """The outputs of the network, and each linear layer that it called with its input."""
    calls: list[tuple[nn.Module, Tensor]] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((module, args[0] if args else kwargs["input"]))

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in linear]
    try:
        return outputs(network, x), calls
    finally:
        for hook in hooks:
            hook.remove()
