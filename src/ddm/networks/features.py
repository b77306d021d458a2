"""Penultimate features of any network."""

from typing import Any

from torch import Tensor, nn

from ddm.networks.base import Network


def penultimate(network: nn.Module, x: Tensor) -> Tensor:
    """Features (b, F) of inputs `x` (b, ...): what the last linear layer is given.

    Built-in networks say what these are. For any other module they are the input of the last `nn.Linear` that
    its forward pass calls, or its outputs if it calls none.
    """
    if isinstance(network, Network):
        return network.features(x)
    given: list[Tensor] = []

    def remember(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append(args[0] if args else kwargs["input"])

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(remember, with_kwargs=True) for module in linear]
    try:
        outputs: Tensor = network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return (given[-1] if given else outputs).reshape(len(x), -1)
