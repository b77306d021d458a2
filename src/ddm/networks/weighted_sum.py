"""A network whose outputs are a weighted sum of the outputs of networks of one architecture."""

from collections.abc import Sequence
from typing import Any

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

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits ``(b, L)`` of the inputs that each network takes."""
        outputs = torch.stack([network(*args, **kwargs) for network in self.networks])
        return torch.einsum("j,j...->...", self.weights.to(outputs), outputs)
