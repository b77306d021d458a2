"""The target as a module with a single parameter, the vector θ: the model that captum, dattri and traker receive.

The libraries then differentiate with respect to exactly the trained parameters, whatever their layers. They leave no
hooks in the network and never modify the target.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ddm.baselines.packing import Packing
from ddm.baselines.protocol import ScoreRequest
from ddm.data.samples import Samples
from ddm.training.target import Target

_BATCH = 64

Batch = tuple[Tensor, Tensor]


class FlatModel(nn.Module):
    """Outputs ``(b, L)`` of packed inputs ``(b, ...)`` at any checkpoint of the target."""

    def __init__(self, target: Target, packing: Packing) -> None:
        super().__init__()
        self.target, self.packing = target, packing
        self.theta = nn.Parameter(target.theta.detach().clone())
        self.constants = target.fixed
        self.eval()

    def load_checkpoint(self, t: int) -> None:
        """Switch to checkpoint ``t``."""
        theta, self.constants = self.target.at(t)
        self.theta.data.copy_(theta)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the target at the current checkpoint."""
        return self.target.flat(self.theta, self.constants, self.packing.unpack(x))


class SummedLoss:
    """The summed loss of a batch, reported as the loss of a single item ``(1,)``.

    The gradient of a sum is the sum of gradients, so a library that works item by item handles a whole batch as one.
    """

    reduction = "none"

    def __init__(self, target: Target) -> None:
        self.loss = target.loss

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Summed loss ``(1,)`` of logits ``(b, L)`` with labels ``(b,)``."""
        return (self.loss(logits, labels) * len(labels))[None]


def group_batches(request: ScoreRequest) -> tuple[list[Batch], np.ndarray]:
    """Batches of the training set that never cross a group, and the group of each batch."""
    batches: list[Batch] = []
    groups: list[int] = []
    for group in range(len(request.partition)):
        rows = torch.as_tensor(request.partition.rows(group))
        parts = list(_batches(request, request.train, rows))
        batches += parts
        groups += [group] * len(parts)
    return batches, np.array(groups)


def query_batches(request: ScoreRequest) -> tuple[list[Batch], np.ndarray]:
    """A batch for each of the m test samples, then batches of the validation set; and the query number of each batch.

    Test samples have query numbers 0 … m − 1. All validation batches share number m.
    """
    single = [batch for i in range(len(request.test)) for batch in _batches(request, request.test, torch.tensor([i]))]
    rest = list(_batches(request, request.validation, torch.arange(len(request.validation))))
    return [*single, *rest], np.array([*range(len(single)), *[len(single)] * len(rest)])


def _batches(request: ScoreRequest, samples: Samples, rows: Tensor) -> Iterator[Batch]:
    for part in rows.split(_BATCH):
        x, y = samples.batch(part)
        yield request.packing.pack(x).to(request.target.device), y.to(request.target.device)


def data_loader(batches: list[Batch]) -> DataLoader[Batch]:
    """A torch loader that yields ready-made batches."""
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def sum_to_groups(
    request: ScoreRequest, scores: np.ndarray, groups: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sum scores of ``group_batches × query_batches`` to effects on test ``(K, m)`` and validation loss ``(K,)``."""
    count = len(request.test)
    totals = np.zeros((len(request.partition), count + 1))
    np.add.at(totals, (groups[:, None], queries[None, :]), scores)
    return totals[:, :count], totals[:, count] / len(request.validation)
