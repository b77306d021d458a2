"""ConvNet, the standard network of dataset condensation (Zhao et al., 2021)."""

from collections.abc import Sequence

from torch import Tensor, nn

from ddm.networks.base import Network
from ddm.networks.norm import NORMS, make_norm
from ddm.networks.options import check_choice, check_integer, check_share
from ddm.networks.pooling import POOLINGS, make_pooling


class ConvNet(Network):
    """`depth` blocks of 3×3 convolution, normalisation, ReLU and 2×2 pooling, then a linear classifier.

    width:   number of channels of every convolution
    norm:    none, batch, layer, instance or group
    pooling: none, max or avg; it stops when a feature map has one pixel
    dropout: probability that training sets a feature to 0 before the classifier
    """

    def __init__(
        self,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        *,
        depth: int = 3,
        width: int = 32,
        norm: str = "group",
        pooling: str = "avg",
        dropout: float = 0.0,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        depth, width = check_integer("depth", depth, maximum=1000), check_integer("width", width)
        norm, pooling = check_choice("norm", norm, NORMS), check_choice("pooling", pooling, POOLINGS)
        options = {"depth": depth, "width": width, "norm": norm, "pooling": pooling}
        if check_share("dropout", dropout):  # specs and printed layers of older networks lack it
            options["dropout"] = dropout
        super().__init__("convnet", shape, classes, init=init, seed=seed, **options)
        channels, size = self.shape[0], (self.shape[1], self.shape[2])
        blocks: list[nn.Module] = []
        with self.building():
            for _ in range(depth):
                pool, pooled = make_pooling(pooling, size)
                convolution = nn.Conv2d(channels, width, 3, padding=1)
                blocks.append(nn.Sequential(convolution, make_norm(norm, width, size), nn.ReLU(), pool))
                channels, size = width, pooled
            if dropout:
                blocks.append(nn.Dropout(dropout))
            self.blocks = nn.Sequential(*blocks)
            self.classifier = nn.Linear(width * size[0] * size[1], self.classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features (b, width · H' · W') of inputs (b, C, H, W)."""
        maps: Tensor = self.blocks(x)
        return maps.flatten(1)
