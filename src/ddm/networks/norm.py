"""Normalisation of a feature map (b, C, H, W).

    none        nothing
    batch       per channel, over the batch
    layer       per example, over all channels
    instance    per example and channel
    group       per example, over groups of channels: the largest group size up to 8 that divides C

All but `batch` treat each example alone, so per-example gradients mean what they say.
"""

from torch import nn

NORMS = ("none", "batch", "layer", "instance", "group")

# One value normalises to 0 and two to ±1, whatever they were.
FEWEST_VALUES = 4


def make_norm(kind: str, channels: int, size: tuple[int, int]) -> nn.Module:
    """The `kind` of normalisation for maps (b, channels, *size).

    Where a group would hold fewer than four values, all channels form one group; where that is still fewer,
    nothing is normalised.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    pixels = size[0] * size[1]
    for group in (_group_size(kind, channels), channels):
        if group * pixels >= FEWEST_VALUES:
            return nn.GroupNorm(channels // group, channels)
    return nn.Identity()


def _group_size(kind: str, channels: int) -> int:
    if kind == "layer":
        return channels
    if kind == "instance":
        return 1
    return max(size for size in range(1, 9) if channels % size == 0)
