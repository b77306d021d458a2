"""A network as a pure function of one parameter vector θ (P,), from a batch to outputs (b, L).

Group gradients, gradient matching and fine-tuning all work on such vectors. The network is always in evaluation
mode: dropout is off, and BatchNorm uses the running statistics of the checkpoint. Any number of threads may call one
``FlatNetwork`` at the same time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddm.compute.tensors import is_finite
from ddm.data.inputs import X
from ddm.errors import InputError
from ddm.networks.attention import math_attention
from ddm.networks.masks import allow_vmap
from ddm.networks.state import State, load_state, persistent_buffers


class FlatNetwork:
    """A network called as ``flat(theta, fixed, x) → outputs (b, L)``.

    ``theta`` holds the trained parameters. ``fixed`` holds the rest of a state: frozen parameters and buffers.

    outputs: ``outputs(network, x) → (b, L)``, what a task reads from the network; None calls the network alone
    """

    def __init__(self, network: nn.Module, outputs: Outputs | None = None) -> None:
        self.network = copy.deepcopy(network).eval()
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(p.shape) for name, p in trained.items()}
        self.sizes = [p.numel() for p in trained.values()]
        self.size = sum(self.sizes)
        self._outputs = outputs or _call
        self._has_ties = _has_ties(self.network)
        self._local = threading.local()
        allow_vmap()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the copies of each thread, which cannot be pickled and are created again when needed."""
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._local = threading.local()
        allow_vmap()

    def vector(self, state: Mapping[str, Tensor]) -> Tensor:
        """The trained parameters θ ``(P,)`` of a state. NaN and infinite values are refused."""
        for name in self.shapes:
            if not is_finite(state[name]):
                raise InputError(
                    f"the parameters {name} hold NaN or infinite values: restore their file or train again."
                )
        return torch.cat([state[name].flatten() for name in self.shapes])

    def fixed(self, state: Mapping[str, Tensor]) -> State:
        """The tensors of a state that are not trained: frozen parameters and buffers."""
        return {name: tensor for name, tensor in state.items() if name not in self.shapes}

    def unflatten(self, theta: Tensor) -> State:
        """θ ``(P,)`` → the trained parameters by name, as views."""
        # One split instead of a slice per parameter: the backward pass of each slice would write a gradient of size P.
        parts = theta.split(self.sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def __call__(self, theta: Tensor, fixed: Mapping[str, Tensor], x: X) -> Tensor:
        """Outputs ``(b, L)`` of inputs ``(b, ...)`` at θ."""
        return self.apply(self.unflatten(theta), fixed, x)

    def apply(self, trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor], x: X) -> Tensor:
        """Outputs ``(b, L)`` of inputs ``(b, ...)`` with the trained parameters given by name."""
        if not isinstance(x, Tensor) or x.is_floating_point():
            x = x.to(next(iter(trained.values())).dtype)
        tensors = {f"network.{name}": tensor for name, tensor in (*fixed.items(), *trained.items())}
        with math_attention:
            # Handling tied weights takes as long as a small network's forward pass, so torch does it only if needed.
            outputs: Tensor = functional_call(self._thread_copy(), tensors, (x,), tie_weights=self._has_ties)
        return outputs

    def outputs_of(self, network: nn.Module, x: X) -> Tensor:
        """Outputs ``(b, L)`` of another network of the same kind, as it is."""
        return self._outputs(network, x)

    def _thread_copy(self) -> nn.Module:
        """The calling thread's own copy of the network, in evaluation mode.

        ``functional_call`` puts tensors into the modules while it runs, so threads must not share modules. They can
        share the parameters and buffers, which every call replaces, so a copy needs little memory.
        """
        if not hasattr(self._local, "network"):
            tensors = (*self.network.parameters(), *persistent_buffers(self.network).values())
            own = copy.deepcopy(self.network, {id(tensor): tensor for tensor in tensors}).eval()
            self._local.network = _Outputs(own, self._outputs).eval()
        network: nn.Module = self._local.network
        return network

    def module(self, theta: Tensor, fixed: Mapping[str, Tensor]) -> nn.Module:
        """A new network with parameters θ, in evaluation mode."""
        network = copy.deepcopy(self.network).eval()
        load_state(network, {**fixed, **self.unflatten(theta)})
        return network


Outputs = Callable[[nn.Module, X], Tensor]
"""``outputs(network, x) → (b, L)``."""


def _call(network: nn.Module, x: X) -> Tensor:
    outputs: Tensor = network(x)
    return outputs


class _Outputs(nn.Module):
    """A network together with what a task reads from it, as one module, which ``functional_call`` needs."""

    def __init__(self, network: nn.Module, outputs: Outputs) -> None:
        super().__init__()
        self.network, self._outputs = network, outputs

    def forward(self, x: X) -> Tensor:
        return self._outputs(self.network, x)


def _has_ties(network: nn.Module) -> bool:
    """True if a parameter or buffer has more than one name."""
    return any(
        len(list(named())) < len(list(named(remove_duplicate=False)))
        for named in (network.named_parameters, network.named_buffers)
    )
