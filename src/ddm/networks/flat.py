"""A network as a pure function of one parameter vector θ (P,).

Group gradients, gradient matching and fine-tuning all work on such vectors. The network is always in evaluation
mode: dropout is off, and BatchNorm uses the running statistics of the checkpoint. Any number of threads may call one
``FlatNetwork`` at the same time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddm.compute.tensors import is_finite
from ddm.errors import InputError
from ddm.networks.attention import math_attention
from ddm.networks.state import State, load_state, persistent_buffers


class FlatNetwork:
    """A network called as ``flat(theta, fixed, x) → logits (b, L)``.

    ``theta`` holds the trained parameters. ``fixed`` holds the rest of a state: frozen parameters and buffers.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval()
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(p.shape) for name, p in trained.items()}
        self.sizes = [p.numel() for p in trained.values()]
        self.size = sum(self.sizes)
        self._has_ties = _has_ties(self.network)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the copies of each thread, which cannot be pickled and are created again when needed."""
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._local = threading.local()

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

    def __call__(self, theta: Tensor, fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs ``(b, ...)`` at θ."""
        return self.apply(self.unflatten(theta), fixed, x)

    def apply(self, trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs ``(b, ...)`` with the trained parameters given by name."""
        if x.is_floating_point():
            x = x.to(next(iter(trained.values())).dtype)
        with math_attention:
            # Handling tied weights takes as long as a small network's forward pass, so torch does it only if needed.
            logits: Tensor = functional_call(
                self._thread_copy(), {**fixed, **trained}, (x,), tie_weights=self._has_ties
            )
        return logits

    def _thread_copy(self) -> nn.Module:
        """The calling thread's own copy of the network, in evaluation mode.

        ``functional_call`` puts tensors into the modules while it runs, so threads must not share modules. They can
        share the parameters and buffers, which every call replaces, so a copy needs little memory.
        """
        if not hasattr(self._local, "network"):
            tensors = (*self.network.parameters(), *persistent_buffers(self.network).values())
            self._local.network = copy.deepcopy(self.network, {id(tensor): tensor for tensor in tensors}).eval()
        network: nn.Module = self._local.network
        return network

    def module(self, theta: Tensor, fixed: Mapping[str, Tensor]) -> nn.Module:
        """A new network with parameters θ, in evaluation mode."""
        network = copy.deepcopy(self.network).eval()
        load_state(network, {**fixed, **self.unflatten(theta)})
        return network


def _has_ties(network: nn.Module) -> bool:
    """True if a parameter or buffer has more than one name."""
    return any(
        len(list(named())) < len(list(named(remove_duplicate=False)))
        for named in (network.named_parameters, network.named_buffers)
    )
