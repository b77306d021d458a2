"""The target as a module of one parameter, θ itself: what captum and dattri are given in place of a network.

They then differentiate by exactly the parameters that were trained, of whatever layers, leave no hooks in the network,
and never touch the target.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ddm.baselines.protocol import Question
from ddm.datasets.samples import Samples
from ddm.target import Target

_PIECE = 64

Batch = tuple[Tensor, Tensor]


class Point(nn.Module):
    """Logits ``(b, L)`` of inputs ``(b, ...)`` at a checkpoint that can be changed."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.theta = nn.Parameter(target.theta.detach().clone())
        self.constants = target.fixed
        self.eval()

    def move(self, t: int) -> None:
        """Go to checkpoint ``t``."""
        theta, self.constants = self.target.at(t)
        self.theta.data.copy_(theta)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the target at θ."""
        return self.target.flat(self.theta, self.constants, x)


class Total:
    """The summed loss of a batch as the loss of one item ``(1,)``.

    A sum of gradients is the gradient of the sum, so a group is one item to a library that goes through items.
    """

    reduction = "none"

    def __init__(self, target: Target) -> None:
        self.loss = target.loss

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Summed loss ``(1,)`` of logits ``(b, L)`` with labels ``(b,)``."""
        return (self.loss(logits, labels) * len(labels))[None]


def pieces(question: Question) -> tuple[list[Batch], np.ndarray]:
    """The training set in batches that lie within a group each, and the group of each batch."""
    batches: list[Batch] = []
    groups: list[int] = []
    for number in range(len(question.partition)):
        rows = torch.as_tensor(question.partition.rows(number))
        parts = list(_batches(question, question.train, rows))
        batches += parts
        groups += [number] * len(parts)
    return batches, np.array(groups)


def asked(question: Question) -> tuple[list[Batch], np.ndarray]:
    """Every test sample by itself and the validation set in batches, and the item of each: 0 … m − 1, then m."""
    single = [
        batch for i in range(len(question.test)) for batch in _batches(question, question.test, torch.tensor([i]))
    ]
    rest = list(_batches(question, question.validation, torch.arange(len(question.validation))))
    return [*single, *rest], np.array([*range(len(single)), *[len(single)] * len(rest)])


def _batches(question: Question, samples: Samples, rows: Tensor) -> Iterator[Batch]:
    for part in rows.split(_PIECE):
        x, y = samples.batch(part)
        yield x.to(question.target.device), y.to(question.target.device)


def loader(batches: list[Batch]) -> DataLoader[Batch]:
    """Batches that are made already, as torch's loader."""
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def gathered(
    question: Question, scores: np.ndarray, groups: np.ndarray, items: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ``pieces`` × ``asked``, summed to those of groups on test ``(K, m)`` and validation ``(K,)``."""
    count = len(question.test)
    totals = np.zeros((len(question.partition), count + 1))
    np.add.at(totals, (groups[:, None], items[None, :]), scores)
    return totals[:, :count], totals[:, count] / len(question.validation)
