"""Penultimate features of any network."""

from typing import Any

from torch import Tensor, nn

from ddm.networks.base import Network


def penultimate(network: nn.Module, x: Tensor) -> Tensor:
    """Features (b, F) of inputs `x` (b, ...): the inputs of the last linear layer.

    Built-in networks have a method for them. For any other module they are the input of the last `nn.Linear` that
    the forward pass calls, or the outputs of the module if it calls none.
    """
    if isinstance(network, Network):
        return network.features(x)
    inputs: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(args[0] if args else kwargs["input"])

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(record_input, with_kwargs=True) for module in linear]
    try:
        outputs: Tensor = network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return (inputs[-1] if inputs else outputs).reshape(len(x), -1)
