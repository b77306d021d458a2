"""ResNet-18 for small images, with average pooling in place of strides (ResNet18AP of dataset condensation).

A strided convolution looks at some pixels more often than at others, which leaves a checkerboard in gradients
with respect to images; a convolution of stride 1 followed by 2×2 average pooling does not.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ddm.networks.base import Network
from ddm.networks.norm import make_norm
from ddm.networks.options import one_of, whole
from ddm.networks.pooling import make_pooling

NORMS = ("batch", "instance", "group")

Size = tuple[int, int]


class ResNet18AP(Network):
    """A 3×3 convolution, eight residual blocks in four stages, the mean over the map, a linear classifier.

    `width` is the channels of the first stage, doubled by each later one; `norm` is one of batch, instance (as dataset
    condensation has it), group (which trains worse here).
    """

    learning_rate = 0.003  # of the full width; at 0.01 the loss rises in the first steps on little data

    def __init__(
        self,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        *,
        width: int = 64,
        norm: str = "instance",
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        width, norm = whole("width", width), one_of("norm", norm, NORMS)
        super().__init__("resnet18ap", shape, classes, init=init, seed=seed, width=width, norm=norm)
        channels, size = width, self.shape[1:]
        blocks = []
        with self.building():
            self.stem = nn.Sequential(_convolution(self.shape[0], width, norm, size), nn.ReLU())
            for stage in range(4):
                for pooled in (stage > 0, False):
                    block = Block(channels, width * 2**stage, norm, size, pooled=pooled)
                    blocks.append(block)
                    channels, size = width * 2**stage, block.size
            self.blocks = nn.Sequential(*blocks)
            self.classifier = nn.Linear(channels, self.classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features (b, 8 · width) of inputs (b, C, H, W)."""
        maps: Tensor = self.blocks(self.stem(x))
        return maps.mean((2, 3))


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, from (b, C, H, W) to (b, C', *size)."""

    def __init__(self, channels: int, out: int, norm: str, size: Size, *, pooled: bool) -> None:
        super().__init__()
        pooling, self.size = make_pooling("avg" if pooled else "none", size)
        self.residual = nn.Sequential(
            _convolution(channels, out, norm, size),
            nn.ReLU(),
            pooling,
            _convolution(out, out, norm, self.size),
        )
        self.shortcut: nn.Module = nn.Identity()
        if pooled:
            # A 1×1 convolution commutes with average pooling, and is cheaper after it.
            self.shortcut = nn.Sequential(pooling, _convolution(channels, out, norm, self.size, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of residual plus shortcut, (b, C', *size)."""
        return F.relu(self.residual(x) + self.shortcut(x))


def _convolution(channels: int, out: int, norm: str, size: Size, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, make_norm(norm, out, size))
