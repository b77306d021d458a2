"""Penultimate features of any network."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ddm.data.inputs import Inputs, X, arguments, call
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
    inputs: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(args[0] if args else kwargs["input"])

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(record_input, with_kwargs=True) for module in linear]
    try:
        found = outputs(network, x)
    finally:
        for hook in hooks:
            hook.remove()
    features: Tensor = inputs[-1] if inputs else found
    positions = isinstance(x, Inputs) and features.dim() == 3
    return features.mean(1) if positions else features.reshape(len(x), -1)
