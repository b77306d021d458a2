"""Dist(·, ·) of Eq. 6: how far the synset's gradient is from the wanted one.

A distance compares gradients ``(B, P)`` of B groups and returns ``(B,)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.networks.flat import FlatNetwork

Distance = Callable[[Tensor, Tensor], Tensor]

_TINY = 1e-6


def layer_cosine(flat: FlatNetwork) -> Distance:
    """1 − cosine for each output unit of each layer, summed, as dataset condensation computes it.

    A weight ``(out, ...)`` is read as ``out`` rows; biases and norm parameters (one dimension) do not count.
    """

    def distance(synthetic: Tensor, wanted: Tensor) -> Tensor:
        total = torch.zeros(len(synthetic), dtype=synthetic.dtype, device=synthetic.device)
        parts = zip(synthetic.split(flat.sizes, 1), wanted.split(flat.sizes, 1), flat.shapes.values(), strict=True)
        for one, other, shape in parts:
            if len(shape) > 1:
                rows = (len(one), shape[0], -1)
                total = total + (1 - _cosine(one.reshape(rows), other.reshape(rows))).sum(1)
        return total

    return distance


def cosine(flat: FlatNetwork) -> Distance:
    """1 − cosine of the complete gradient vectors."""
    return lambda synthetic, wanted: 1 - _cosine(synthetic, wanted)


def mse(flat: FlatNetwork) -> Distance:
    """Squared difference, relative to the squared length of the wanted gradient, so that groups are comparable."""

    def distance(synthetic: Tensor, wanted: Tensor) -> Tensor:
        return (synthetic - wanted).square().sum(1) / (wanted.square().sum(1) + _TINY**2)

    return distance


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    return F.cosine_similarity(one, other, dim=-1, eps=_TINY)


DISTANCES: dict[str, Callable[[FlatNetwork], Distance]] = {
    "layer-cosine": layer_cosine,
    "cosine": cosine,
    "mse": mse,
}
