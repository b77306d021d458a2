"""Look inside the wrappers that training libraries put around networks and optimizers."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_AUTOCAST = ("forward", "_original_forward")
"""What Accelerate puts into a network to compute in mixed precision."""


def inner_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that makes the steps, within those of Accelerate or Lightning. Only its hooks are called."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def inner_network(network: nn.Module) -> nn.Module:
    """The network within ``torch.compile`` and data parallelism."""
    while True:
        wraps = isinstance(network, (nn.DataParallel, DistributedDataParallel))
        inner = network.module if wraps else getattr(network, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return network
        network = inner


def without_autocast(network: nn.Module) -> nn.Module:
    """The network, or a copy that computes in full precision if Accelerate has changed how it is called."""
    if _AUTOCAST[1] not in vars(network):
        return network
    network = copy.deepcopy(network)
    for name in _AUTOCAST:
        vars(network).pop(name, None)
    return network
