"""Compute features of samples, on which k-means clusters them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddm.compute.progress import bar
from ddm.data.inputs import at_once, unwrap
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.networks import penultimate
from ddm.training.target import Target

Features = nn.Module | Callable[[Any], Tensor] | str | None
"""Where features come from: the target (None), a module or callable, or ``hf:NAME`` for a pre-trained network."""


def features_of(samples: Samples, source: Features, target: Target | None = None, batch_size: int = 512) -> np.ndarray:
    """Features ``(n, F)`` of every sample, from the target's penultimate layer unless ``source`` is given."""
    extract = _extractor(source, target)
    parts = []
    rows = torch.arange(len(samples)).split(at_once(batch_size, samples.bytes_each))
    with torch.no_grad(), _evaluation_mode(source), bar("features", len(rows)) as advance:
        for x, _ in samples.batches(rows):
            values = extract(unwrap(x) if source is not None else x)
            if not isinstance(values, Tensor) or values.dim() < 2 or len(values) != len(x):
                raise InputError("features must be a tensor with one row per input.")
            parts.append(values.detach().flatten(1).cpu().float().numpy().copy())
            advance(1)
    features = np.concatenate(parts)
    if not np.isfinite(features).all():
        raise InputError("the features contain NaN or infinite values: use another feature extractor.")
    return features


def _extractor(source: Features, target: Target | None) -> Callable[[Any], Tensor]:
    """The function that computes the features of a batch."""
    if source is None:
        if target is None:
            raise InputError("clustering needs features: give a target, a module or a callable.")
        network, like = target.network, target.theta
        return lambda x: penultimate(network, x.to(like), target.task.outputs)
    if isinstance(source, str):
        from ddm.groups.pretrained import image_features

        return image_features(source)
    return source


@contextlib.contextmanager
def _evaluation_mode(source: Features) -> Iterator[None]:
    """Put a module into evaluation mode, then restore the mode of each of its submodules."""
    modes = {m: m.training for m in source.modules()} if isinstance(source, nn.Module) else {}
    if isinstance(source, nn.Module):
        source.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
