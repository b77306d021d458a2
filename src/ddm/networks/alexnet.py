"""AlexNet for small images, in the form that papers on dataset condensation use to evaluate synthetic data."""

from collections.abc import Sequence

from torch import Tensor, nn

from ddm.networks.base import Network
from ddm.networks.options import check_integer
from ddm.networks.pooling import make_pooling


class AlexNet(Network):
    """Five convolutions with ReLU, 2×2 max pooling after the first, second and fifth, then a linear classifier.

    `width` is the number of channels of the first convolution. The others have 1.5, 2, 1.5 and 1.5 times as many
    (128, 192, 256, 192, 192 by default). Pooling stops when a feature map has one pixel. There is no dropout and no
    normalisation, so the examples of a batch do not influence each other.
    """

    # Without normalisation training diverges at 0.1, and at 0.01 the loss on colour images rises first.
    learning_rate = 0.003

    def __init__(
        self,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        *,
        width: int = 128,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        width = check_integer("width", width)
        super().__init__("alexnet", shape, classes, init=init, seed=seed, width=width)
        wide = width * 3 // 2
        # output channels, kernel size, pooling
        stages = (
            (width, 5, "max"),
            (wide, 5, "max"),
            (width * 2, 3, "none"),
            (wide, 3, "none"),
            (wide, 3, "max"),
        )
        channels, size = self.shape[0], (self.shape[1], self.shape[2])
        layers: list[nn.Module] = []
        with self.building():
            for out, kernel, pooling in stages:
                pool, size = make_pooling(pooling, size)
                layers += [nn.Conv2d(channels, out, kernel, padding=kernel // 2), nn.ReLU(), pool]
                channels = out
            self.layers = nn.Sequential(*layers)
            self.classifier = nn.Linear(channels * size[0] * size[1], self.classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features (b, 1.5 · width · H' · W') of inputs (b, C, H, W)."""
        maps: Tensor = self.layers(x)
        return maps.flatten(1)
