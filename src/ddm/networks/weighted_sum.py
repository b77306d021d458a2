"""A network whose outputs are a weighted sum of the outputs of networks of one architecture."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class WeightedSum(nn.Module):
    """Maps inputs to Σ_j w_j f_j(x), for networks f_j of the same architecture."""

    weights: Tensor

    def __init__(self, networks: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("weights", torch.as_tensor(weights, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of inputs ``(b, ...)``."""
        outputs = torch.stack([network(x) for network in self.networks])
        return torch.einsum("j,j...->...", self.weights.to(outputs), outputs)
