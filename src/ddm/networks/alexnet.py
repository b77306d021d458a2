"""AlexNet for small images, as dataset condensation evaluates it: five convolutions, one linear layer."""

from collections.abc import Sequence

from torch import Tensor, nn

from ddm.networks.base import Network
from ddm.networks.options import whole
from ddm.networks.pooling import make_pooling


class AlexNet(Network):
    """Five convolutions with ReLU, a 2×2 max pooling after the first, second and fifth, a linear classifier.

    `width` is the channels of the first convolution; the others have 1.5, 2, 1.5 and 1.5 times as many
    (128, 192, 256, 192, 192 by default). Pooling stops at a map of one pixel. There is no dropout and no
    normalisation, so each example is treated alone.
    """

    learning_rate = 0.003  # it has no normalisation: at 0.1 it diverges, at 0.01 the loss of colour images jumps first

    def __init__(
        self,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        *,
        width: int = 128,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        width = whole("width", width)
        super().__init__("alexnet", shape, classes, init=init, seed=seed, width=width)
        more = width * 3 // 2
        # channels out, kernel, pooling after it
        stages = (
            (width, 5, "max"),
            (more, 5, "max"),
            (width * 2, 3, "none"),
            (more, 3, "none"),
            (more, 3, "max"),
        )
        channels, size = self.shape[0], self.shape[1:]
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
