"""2×2 pooling of feature maps. An axis with a single pixel is not pooled."""

from torch import Tensor, nn

POOLINGS = ("none", "max", "avg")


def make_pooling(kind: str, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """A pooling layer of this `kind` for feature maps (b, C, *size), and the size of its outputs."""
    kernel = (min(2, size[0]), min(2, size[1]))
    if kind == "none" or kernel == (1, 1):
        return nn.Identity(), size
    pooling = nn.MaxPool2d(kernel) if kind == "max" else _AveragePooling(kernel)
    return pooling, (size[0] // kernel[0], size[1] // kernel[1])


class _AveragePooling(nn.AvgPool2d):
    """Average pooling that adds neighbours on the CPU, where this is several times as fast as torch's kernel."""

    def forward(self, input: Tensor) -> Tensor:
        """Means (b, C, H', W') of feature maps (b, C, H, W)."""
        if input.device.type != "cpu":
            return super().forward(input)
        kernel: tuple[int, int] = self.kernel_size  # type: ignore[assignment]
        for axis, neighbours in zip((-2, -1), kernel, strict=True):
            if neighbours == 2:
                input = _add_pairs(input, axis)
        return input / (kernel[0] * kernel[1])


def _add_pairs(x: Tensor, axis: int) -> Tensor:
    """Add neighbours in pairs along an axis. If their number is odd, the last one is dropped."""
    first, second = x.narrow(axis, 0, x.shape[axis] // 2 * 2).unflatten(axis, (-1, 2)).unbind(axis)
    total: Tensor = first + second
    return total
