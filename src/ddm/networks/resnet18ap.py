"""ResNet-18 for small images, with average pooling in place of strides (ResNet18AP of dataset condensation).

A strided convolution uses some pixels more often than others, which leaves a checkerboard pattern in the gradient
with respect to the image. A convolution of stride 1, followed by 2×2 average pooling, does not.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ddm.networks.base import Network
from ddm.networks.norm import make_norm
from ddm.networks.options import check_choice, check_integer
from ddm.networks.pooling import make_pooling

NORMS = ("batch", "instance", "group")

Size = tuple[int, int]


class ResNet18AP(Network):
    """A 3×3 convolution, eight residual blocks in four stages, global average pooling, then a linear classifier.

    width: number of channels of the first stage; each later stage doubles it
    norm:  batch, instance (as in papers on dataset condensation) or group (trains worse in this network)
    """

    learning_rate = 0.003  # chosen at the default width; at 0.01 the loss on small datasets rises in the first steps

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
        width, norm = check_integer("width", width), check_choice("norm", norm, NORMS)
        super().__init__("resnet18ap", shape, classes, init=init, seed=seed, width=width, norm=norm)
        channels, size = width, (self.shape[1], self.shape[2])
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
    """A residual block: two 3×3 convolutions plus a shortcut, from (b, C, H, W) to (b, C', *size)."""

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
            # A 1×1 convolution commutes with average pooling, so it comes second, where it is cheaper.
            self.shortcut = nn.Sequential(pooling, _convolution(channels, out, norm, self.size, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of residual plus shortcut, (b, C', *size)."""
        return F.relu(self.residual(x) + self.shortcut(x))


def _convolution(channels: int, out: int, norm: str, size: Size, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, make_norm(norm, out, size))
