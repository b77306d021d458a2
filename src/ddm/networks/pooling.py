"""2×2 pooling that leaves alone an axis that is already a single pixel."""

from torch import nn

POOLINGS = ("none", "max", "avg")


def make_pooling(kind: str, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """The `kind` of pooling for maps (b, C, *size), and the size of the maps after it."""
    kernel = (min(2, size[0]), min(2, size[1]))
    if kind == "none" or kernel == (1, 1):
        return nn.Identity(), size
    pooling = nn.MaxPool2d(kernel) if kind == "max" else nn.AvgPool2d(kernel)
    return pooling, (size[0] // kernel[0], size[1] // kernel[1])
