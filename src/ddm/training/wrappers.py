"""Look inside the wrappers that training libraries put around networks and optimizers."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_PATCHED = "_original_forward"
"""Where Accelerate keeps a network's own ``forward`` when it replaces it to compute in mixed precision."""

_PREPARED = "_is_accelerate_prepared"
"""Accelerate's mark on a network that it need not prepare again."""


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


def without_accelerate(network: nn.Module) -> nn.Module:
    """The network, or a copy without what Accelerate has changed in it: it computes in full precision again."""
    if not {_PATCHED, _PREPARED} & vars(network).keys():
        return network
    network = copy.deepcopy(network)
    changed = (_PREPARED, _PATCHED, "forward") if _PATCHED in vars(network) else (_PREPARED,)
    for name in changed:
        vars(network).pop(name, None)
    return network
