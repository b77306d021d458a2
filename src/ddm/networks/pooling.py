"""2×2 pooling that leaves alone an axis that is already a single pixel."""

from torch import Tensor, nn

POOLINGS = ("none", "max", "avg")


def make_pooling(kind: str, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """The `kind` of pooling for maps (b, C, *size), and the size of the maps after it."""
    kernel = (min(2, size[0]), min(2, size[1]))
    if kind == "none" or kernel == (1, 1):
        return nn.Identity(), size
    pooling = nn.MaxPool2d(kernel) if kind == "max" else _Mean(kernel)
    return pooling, (size[0] // kernel[0], size[1] // kernel[1])


class _Mean(nn.AvgPool2d):
    """Average pooling by sums of neighbours, which a processor finds some times as fast as by windows."""

    def forward(self, input: Tensor) -> Tensor:
        """Means (b, C, H', W') of maps (b, C, H, W)."""
        if input.device.type != "cpu":
            return super().forward(input)
        kernel: tuple[int, int] = self.kernel_size  # type: ignore[assignment]
        for axis, neighbours in zip((-2, -1), kernel, strict=True):
            if neighbours == 2:
                input = _sums_of_pairs(input, axis)
        return input / (kernel[0] * kernel[1])


def _sums_of_pairs(x: Tensor, axis: int) -> Tensor:
    """Sums of two neighbours each along an axis, without the last of an odd number."""
    first, second = x.narrow(axis, 0, x.shape[axis] // 2 * 2).unflatten(axis, (-1, 2)).unbind(axis)
    total: Tensor = first + second
    return total
