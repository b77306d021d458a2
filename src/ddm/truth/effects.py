"""Effects of removing groups on test samples: as a datamodel predicts them, and as retraining shows them.

An effect is a value without a group less the value with all: positive = removing it raises the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.samples import Samples
from ddm.groups.partition import Partition
from ddm.truth.retraining import NO_ROWS, Exact, group_rows


@dataclass(frozen=True)
class Asked:
    """What effects are asked about.

    test:       m samples, each of them
    validation: samples whose mean loss counts
    groups:     numbers of the groups that are removed one at a time ``(G,)``
    unions:     groups that are removed together ``(U, K)``, as booleans
    """

    test: Samples
    validation: Samples
    groups: np.ndarray
    unions: np.ndarray

    @property
    def removed(self) -> np.ndarray:
        """Every perturbation ``(G + U, K)``: the single groups, then the unions."""
        singles = designs.leave_one_out(self.unions.shape[1])[self.groups]
        removed: np.ndarray = np.vstack([singles, self.unions])
        return removed

    def inputs(self) -> Tensor:
        """Test inputs, then validation inputs."""
        return torch.cat([self.test.batch()[0], self.validation.batch()[0]])


@dataclass(frozen=True, eq=False)
class Effects:
    """What removing groups does, predicted or true, on m test samples.

    shift:      Dist_1 of each single group ``(K, m)``, or whatever orders groups as it does
    margin:     change of the correct class's log-odds, without each single group ``(K, m)``
    validation: change of the mean validation loss, without each single group ``(K,)``
    unions:     change of the log-odds without each of U unions of groups ``(U, m)``
    base:       the log-odds with all groups ``(m,)``
    """

    shift: np.ndarray
    margin: np.ndarray
    validation: np.ndarray
    unions: np.ndarray
    base: np.ndarray

    def of(self, groups: np.ndarray) -> Effects:
        """The effects of some groups alone."""
        return Effects(self.shift[groups], self.margin[groups], self.validation[groups], self.unions, self.base)


def predicted(models: Models, asked: Asked) -> Effects:
    """What models without groups say."""
    x = asked.inputs()
    outputs = (logits.cpu() for stack in models.stacks(asked.removed, x) for logits in stack)
    return _effects(outputs, next(outputs), asked)


def retrained(exact: Exact, partition: Partition, asked: Asked, order: int) -> Effects:
    """What retraining with one batch order shows, against retraining with all groups in the same order."""
    removals = [NO_ROWS, *group_rows(partition, asked.removed)]
    base, *outputs = exact.outputs(removals, order, asked.inputs())
    return _effects(outputs, base, asked)


def _effects(outputs: Iterable[Tensor], base: Tensor, asked: Asked) -> Effects:
    """From logits ``(m + v, L)`` of test and validation samples under each perturbation and with all groups."""
    m, labels, y = len(asked.test), asked.test.labels, asked.validation.labels
    before, loss_before = log_odds(base[:m], labels), cross_entropy(base[m:], y).mean()
    shifts, margins, losses = [], [], []
    for logits in outputs:
        shifts.append(shift(logits[:m], base[:m]))
        margins.append(log_odds(logits[:m], labels) - before)
        losses.append(cross_entropy(logits[m:], y).mean() - loss_before)
    count = len(asked.groups)
    return Effects(
        shift=torch.stack(shifts[:count]).numpy(),
        margin=torch.stack(margins[:count]).numpy(),
        validation=torch.stack(losses[:count]).numpy(),
        unions=torch.stack(margins)[count:].numpy(),
        base=before.numpy(),
    )


def shift(outputs: Tensor, base: Tensor) -> Tensor:
    """Dist_1 ``(..., m)`` of logits ``(..., m, L)`` against ``(m, L)``."""
    return (outputs.double().softmax(-1) - base.double().softmax(-1)).square().sum(-1)


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Loss ``(..., m)`` of each sample, for logits ``(..., m, L)``."""
    logs = outputs.double().log_softmax(-1)
    return -logs.gather(-1, labels.expand(logs.shape[:-1])[..., None])[..., 0]


def log_odds(outputs: Tensor, labels: Tensor) -> Tensor:
    """Margin ``(..., m)``: log p/(1 − p) of the correct class, a decreasing function of the loss."""
    outputs = outputs.double()
    right = torch.nn.functional.one_hot(labels, outputs.shape[-1]).bool().expand(outputs.shape)
    return outputs[right].reshape(outputs.shape[:-1]) - outputs.masked_fill(right, -torch.inf).logsumexp(-1)
