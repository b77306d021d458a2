"""A multilayer perceptron for tables."""

from collections.abc import Sequence

from torch import Tensor, nn

from ddm.networks.base import Network, check_scaling
from ddm.networks.options import check_integer, check_share


class MLP(Network):
    """`depth` hidden layers of `width` units with ReLU, then a linear classifier. Inputs are tables (b, F).

    depth:   number of hidden layers
    dropout: probability that training sets a unit of a hidden layer to 0
    scale, shift: the outputs are `scale * classifier(features) + shift`; for a regression, standard deviation and mean
             of the numbers to predict

    The columns should have similar scales, for example mean 0 and variance 1. With `classes=1` the network returns
    one number for each row, for a regression or for the logit of a binary label.
    """

    learning_rate = 0.03  # at 0.1 regressions diverge

    inputs = "tables"

    def __init__(
        self,
        shape: Sequence[int] = (8,),
        classes: int = 2,
        *,
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.0,
        scale: float = 1.0,
        shift: float = 0.0,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        width, depth = check_integer("width", width), check_integer("depth", depth, maximum=1000)
        options = {"width": width, "depth": depth, "dropout": check_share("dropout", dropout)}
        options |= check_scaling(scale, shift)
        super().__init__("mlp", shape, classes, init=init, seed=seed, **options)
        layers: list[nn.Module] = []
        with self.building():
            for columns in (*self.shape, *[width] * (depth - 1)):
                layers += [nn.Linear(columns, width), nn.ReLU()]
                if dropout:
                    layers.append(nn.Dropout(dropout))
            self.layers = nn.Sequential(*layers)
            self.classifier = nn.Linear(width, self.classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features (b, width) of inputs (b, F)."""
        features: Tensor = self.layers(x)
        return features
