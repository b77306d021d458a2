"""Normalisation of a feature map (b, C, H, W).

    none        no normalisation
    batch       per channel, over the batch
    layer       per example, over all channels
    instance    per example and channel
    group       per example, over groups of channels: the largest group size up to 8 that divides C

With all but `batch`, the gradient of one example does not depend on the other examples of its batch.
"""

from torch import nn

NORMS = ("none", "batch", "layer", "instance", "group")

# With fewer values normalisation destroys the signal: one value always becomes 0, two become ±1.
MIN_VALUES = 4


def make_norm(kind: str, channels: int, size: tuple[int, int]) -> nn.Module:
    """A normalisation layer of this `kind` for feature maps (b, channels, *size).

    If a group would have fewer than four values, all channels form one group. If that group still has fewer, the layer
    does nothing.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    pixels = size[0] * size[1]
    for group in (_group_size(kind, channels), channels):
        if group * pixels >= MIN_VALUES:
            return nn.GroupNorm(channels // group, channels)
    return nn.Identity()


def _group_size(kind: str, channels: int) -> int:
    if kind == "layer":
        return channels
    if kind == "instance":
        return 1
    return max(size for size in range(1, 9) if channels % size == 0)
