"""A network as a pure function of one parameter vector θ (P,).

Everything the method does (gradients of groups, matching, fine-tuning) is arithmetic on such vectors.
The network is always in evaluation mode: BatchNorm uses the statistics of the checkpoint it is read at,
and dropout is off. Any number of threads may call one ``FlatNetwork`` at the same time.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddm.compute.tensors import is_finite
from ddm.errors import InputError

State = dict[str, Tensor]
"""Every parameter and persistent buffer of a network, by name."""


def state_of(network: nn.Module) -> State:
    """A copy of a network's parameters (each shared one once) and persistent buffers."""
    tensors = dict(network.named_parameters()) | _persistent_buffers(network)
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def load_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put ``state`` into a network, in place."""
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    with torch.no_grad():
        for name, value in state.items():
            tensors[name].copy_(value)


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of everything that ``state_of`` gives."""
    return {name: tuple(tensor.shape) for name, tensor in state_of(network).items()}


def check_state(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Refuse a state of a network with other ``shapes``, and say which tensor tells."""
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in (*shapes, *found):
        if found.get(name) != shapes.get(name):
            here, there = (f"{one.get(name)}" if name in one else "missing" for one in (shapes, found))
            raise InputError(f"{what} is of another network: {name} is {there} there, {here} in this one.")


class FlatNetwork:
    """The network behind a vector: ``flat(theta, fixed, x) → logits (b, L)``.

    ``theta`` holds the parameters that are trained; ``fixed`` the rest of a state: frozen parameters and buffers.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval()
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(p.shape) for name, p in trained.items()}
        self.sizes = [p.numel() for p in trained.values()]
        self.size = sum(self.sizes)
        self._ties = _has_ties(self.network)
        self._own = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the copies of threads, which cannot be pickled and are made again on demand."""
        return {name: value for name, value in vars(self).items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._own = threading.local()

    def vector(self, state: Mapping[str, Tensor]) -> Tensor:
        """The trained part θ ``(P,)`` of a state; NaN and infinite values are refused."""
        for name in self.shapes:
            if not is_finite(state[name]):
                raise InputError(
                    f"the parameters {name} hold NaN or infinite values: restore their file or train again."
                )
        return torch.cat([state[name].flatten() for name in self.shapes])

    def fixed(self, state: Mapping[str, Tensor]) -> State:
        """The part of a state that is not trained."""
        return {name: tensor for name, tensor in state.items() if name not in self.shapes}

    def unflatten(self, theta: Tensor) -> State:
        """θ ``(P,)`` → the trained parameters by name, as views."""
        # One split, not a slice per parameter: the backward of a slice writes all of θ each time.
        parts = theta.split(self.sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def __call__(self, theta: Tensor, fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs ``(b, ...)`` at θ."""
        return self.apply(self.unflatten(theta), fixed, x)

    def apply(self, trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs ``(b, ...)`` with parameters by name."""
        if x.is_floating_point():
            x = x.to(next(iter(trained.values())).dtype)
        with _math_attention:
            # Looking for shared tensors takes as long as a small network, so it is done where there are any.
            logits: Tensor = functional_call(self._skeleton(), {**fixed, **trained}, (x,), tie_weights=self._ties)
        return logits

    def _skeleton(self) -> nn.Module:
        """The calling thread's own copy of the network, in evaluation mode.

        ``functional_call`` puts tensors into the modules while it runs, so two threads must not share modules. The
        tensors of a state are replaced in every call, so all copies share them and a copy takes little memory.
        """
        if not hasattr(self._own, "network"):
            tensors = (*self.network.parameters(), *_persistent_buffers(self.network).values())
            self._own.network = copy.deepcopy(self.network, {id(tensor): tensor for tensor in tensors}).eval()
        network: nn.Module = self._own.network
        return network

    def module(self, theta: Tensor, fixed: Mapping[str, Tensor]) -> nn.Module:
        """A plain network with parameters θ, in evaluation mode."""
        network = copy.deepcopy(self.network).eval()
        load_state(network, {**fixed, **self.unflatten(theta)})
        return network


def _persistent_buffers(network: nn.Module) -> State:
    """The buffers that are part of a network's state, by name."""
    kept = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in kept}


class _MathAttention:
    """A context in which attention uses torch's math kernel, the only one that a CPU can differentiate twice.

    ``sdpa_kernel`` sets flags of the whole process. So the first thread that enters sets them and the last thread that
    leaves restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._flags: AbstractContextManager[Any] | None = None
        if hasattr(os, "register_at_fork"):
            # Fork waits until no thread changes the flags. The threads that are inside do not exist in the child.
            os.register_at_fork(
                before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._after_fork
            )

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._flags = sdpa_kernel(SDPBackend.MATH)
                self._flags.__enter__()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._restore()

    def _after_fork(self) -> None:
        self._inside = 0
        self._restore()
        self._lock.release()

    def _restore(self) -> None:
        if self._flags is not None:
            self._flags.__exit__(None, None, None)
            self._flags = None


_math_attention = _MathAttention()


def _has_ties(network: nn.Module) -> bool:
    """Whether a parameter or buffer has more than one name."""
    return any(
        len(list(named())) < len(list(named(remove_duplicate=False)))
        for named in (network.named_parameters, network.named_buffers)
    )
