"""The state of torch's optimizer as tensors with names, so that a training can resume from a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ddm.networks.state import State

_PREFIX = "optimizer."


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> State:
    """The tensors that the optimizer stores for each of its parameters, by their names in files."""
    tensors: State = {}
    for index, parameter in enumerate(parameters.values()):
        values = optimizer.state[parameter].items()
        tensors |= {f"{_PREFIX}{index}.{key}": value for key, value in values if value is not None}
    return tensors


def load_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], stored: frozenset[str], tensors: State
) -> None:
    """Load the tensors that ``optimizer_state`` returned, and remove them from ``tensors``.

    stored: names of the values that this optimizer stores. Raises ValueError if the tensors do not fit.
    """
    for index, parameter in enumerate(parameters.values()):
        prefix = f"{_PREFIX}{index}."
        names = [name for name in tensors if name.startswith(prefix)]
        values = {name.removeprefix(prefix): tensors.pop(name) for name in names}
        _check(values, parameter, stored)
        if values:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in values.items()}


def _check(values: State, parameter: nn.Parameter, stored: frozenset[str]) -> None:
    """Refuse values that torch would not store for a parameter."""
    missing = stored - values.keys() - {"momentum_buffer"}  # torch has none without momentum
    if not values.keys() <= stored or (values and missing):
        raise ValueError(f"the optimizer stores {', '.join(sorted(stored))}, not {', '.join(sorted(values))}")
    for key, value in values.items():
        if not (_is_counter(value) if value.dim() == 0 else _fits(value, parameter)):
            raise ValueError(f"the optimizer's {key} belongs to another parameter")


def _is_counter(value: Tensor) -> bool:
    return bool(value.isfinite() and value > 0)


def _fits(value: Tensor, parameter: nn.Parameter) -> bool:
    return (value.shape, value.dtype) == (parameter.shape, parameter.dtype)
