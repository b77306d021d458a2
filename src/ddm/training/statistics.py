"""Running statistics of normalisation layers, estimated again from training data at the checkpoints of a target.

In evaluation mode BatchNorm normalises by running averages of the means and variances that it saw during training. At
early checkpoints these averages lag behind the weights, and at θ_0 they are constants (mean 0, variance 1). The loss
there and its gradients can be far larger than those that the training saw. So the statistics of every checkpoint
but the last are estimated again. The last checkpoint is the target itself, which is used as it was trained.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ddm.compute.progress import Advance, bar
from ddm.data.samples import Samples
from ddm.networks.state import State
from ddm.training.target import Target

_SAMPLES, _BATCH = 1024, 128
"""Maximum samples from which the statistics are estimated, and maximum samples per batch."""


def with_estimated_statistics(target: Target, samples: Samples, checkpoints: Iterable[int]) -> Target:
    """The target with running statistics estimated at ``checkpoints``, except at the last checkpoint of the training.

    Layers whose statistics did not change during the training keep them, because the user froze these layers. If there
    are no other layers that track statistics, the target itself is returned.
    """
    names = _updated_layers(target)
    if not names or len(samples) < 2:  # a single sample has no variance
        return target
    earlier = sorted(set(checkpoints) - {len(target.trajectory) - 1})
    batches = _draw_batches(len(samples))
    estimated = copy.copy(target)
    with bar("estimating the statistics of normalisation layers", len(earlier) * len(batches)) as advance:
        estimated.statistics = {t: _estimate(target, t, names, samples, batches, advance) for t in earlier}
    return estimated


def updates_statistics(target: Target) -> bool:
    """True if the training updated the running statistics of a layer."""
    return bool(_updated_layers(target))


def _updated_layers(target: Target) -> list[str]:
    """Names of the layers whose running statistics changed during the training."""
    tracking = [
        name
        for name, layer in target.network.named_modules()
        if isinstance(layer, _NormBase) and layer.running_mean is not None
    ]
    if not tracking:
        return []
    first, last = target.trajectory[0], target.trajectory[-1]
    return [name for name in tracking if any(not torch.equal(first[key], last[key]) for key in _keys(name))]


def _keys(layer: str) -> list[str]:
    """The names of a layer's running statistics in a state."""
    return [f"{layer}.{kind}".removeprefix(".") for kind in ("running_mean", "running_var")]


def _draw_batches(count: int) -> Sequence[Tensor]:
    """Random positions below ``count``, in batches of equal size: a last batch of one sample would have no variance."""
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_SAMPLES]
    return rows.tensor_split(math.ceil(len(rows) / _BATCH))


def _estimate(
    target: Target, t: int, names: Sequence[str], samples: Samples, batches: Sequence[Tensor], advance: Advance
) -> State:
    """The running statistics of these layers at θ_t: each layer's mean over the batches, as in training mode."""
    network = target.flat.module(*target.at(t))
    for name in names:
        _average_batches(network.get_submodule(name))
    with torch.no_grad():
        for rows in batches:
            target.flat.outputs_of(network, samples.batch(rows)[0].to(target.theta))
            advance(1)
    buffers = dict(network.named_buffers())
    return {key: buffers[key].cpu() for name in names for key in _keys(name)}


def _average_batches(layer: nn.Module) -> None:
    """Put a layer in training mode, such that its running statistics become the mean over all batches from now on."""
    assert isinstance(layer, _NormBase)
    layer.train()
    calls = 0

    def weigh(layer: _NormBase, inputs: tuple[Tensor, ...]) -> None:
        nonlocal calls
        calls += 1
        layer.momentum = 1 / calls  # torch averages if momentum is None, but InstanceNorm then keeps its statistics

    layer.register_forward_pre_hook(weigh)
    if isinstance(layer, nn.SyncBatchNorm):  # its own forward would wait for the other processes of the training
        layer.forward = MethodType(_BatchNorm.forward, layer)  # type: ignore[method-assign]
