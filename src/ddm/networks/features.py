"""Penultimate features of any network."""

from typing import Any

from torch import Tensor, nn

from ddm.networks.base import Network


def penultimate(network: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """Features (b, F) of a batch, given as the network takes it: the inputs of the last linear layer.

    Built-in networks have a method for them. For any other module they are the input of the last `nn.Linear` that
    the forward pass calls, or the outputs of the module if it calls none.
    """
    if isinstance(network, Network):
        features: Tensor = network.features(*args, **kwargs)
        return features
    inputs: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(args[0] if args else kwargs["input"])

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(record_input, with_kwargs=True) for module in linear]
    try:
        outputs = network(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    last: Tensor = inputs[-1] if inputs else outputs
    return last.reshape(len(outputs) if isinstance(outputs, Tensor) else len(last), -1)
