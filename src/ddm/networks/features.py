"""Penultimate features of any network."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ddm.data.inputs import X
from ddm.networks.base import Network


def penultimate(network: nn.Module, x: X, outputs: Callable[[nn.Module, X], Tensor] | None = None) -> Tensor:
    """Features (b, F) of inputs `x` (b, ...): the inputs of the last linear layer.

    Built-in networks have a method for them. For any other module they are the input of the last `nn.Linear` that
    the forward pass calls, or the outputs of the module if it calls none. Features of several positions are averaged.

    outputs: calls the network; without it the inputs are its only argument
    """
    if isinstance(network, Network) and isinstance(x, Tensor):
        return network.features(x)
    inputs: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(args[0] if args else kwargs["input"])

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(record_input, with_kwargs=True) for module in linear]
    try:
        found = network(x) if outputs is None else outputs(network, x)
    finally:
        for hook in hooks:
            hook.remove()
    features = inputs[-1] if inputs else found
    return features.flatten(1, -2).mean(1) if features.dim() > 2 else features.reshape(len(x), -1)
