"""Effects of removing groups on test samples: as a datamodel predicts them, and as retraining shows them.

effect = value without a group − value with all groups: positive means that removing the group raises the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.inputs import X, join
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.groups.partition import Partition
from ddm.truth.retraining import NO_ROWS, Retraining, group_rows

CLASSIFICATION = Task()


@dataclass(frozen=True)
class EffectQuery:
    """A query for effects: the samples to measure, and the groups to remove.

    test:       m samples; effects are computed for each one
    validation: samples; effects are computed on their mean loss
    groups:     numbers of the groups that are removed one at a time ``(G,)``
    unions:     sets of groups that are removed together ``(U, K)``, as booleans
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

    def inputs(self) -> X:
        """Test inputs, then validation inputs."""
        return join([self.test.batch()[0], self.validation.batch()[0]])


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects of removing groups on m test samples, predicted or true.

    shift:      Dist_1 of each single group ``(K, m)``, or any score that orders groups as Dist_1 does
    margin:     change of the correct class's log-odds without each single group ``(K, m)``; of the predicted number in
                regression, of the mean log-odds of the correct states for several labels, else of minus the loss
    validation: change of the mean validation loss without each single group ``(K,)``
    unions:     change of the log-odds without each of U unions of groups ``(U, m)``
    base:       the log-odds with all groups ``(m,)``
    """

    shift: np.ndarray
    margin: np.ndarray
    validation: np.ndarray
    unions: np.ndarray
    base: np.ndarray

    def of(self, groups: np.ndarray) -> Effects:
        """The effects of these groups only; unions stay."""
        return Effects(self.shift[groups], self.margin[groups], self.validation[groups], self.unions, self.base)


def predict_effects(models: Models, query: EffectQuery) -> Effects:
    """Effects as the models of a datamodel predict them."""
    x = query.inputs()
    outputs = (logits.cpu() for stack in models.stacks(query.removed, x) for logits in stack)
    return effects_of_outputs(outputs, next(outputs), query, models.target.task)


def measure_effects(retraining: Retraining, partition: Partition, query: EffectQuery, order: int) -> Effects:
    """Effects of retraining with one batch order, compared with retraining on all groups in the same order."""
    removals = [NO_ROWS, *group_rows(partition, query.removed)]
    base, *outputs = retraining.outputs(removals, order, query.inputs())
    return effects_of_outputs(outputs, base, query, retraining.target.task)


def effects_of_outputs(
    outputs: Iterable[Tensor], base: Tensor, query: EffectQuery, task: Task = CLASSIFICATION
) -> Effects:
    """Effects from outputs ``(m + v, L)`` of test and validation samples, with all groups and without some."""
    m, labels, y = len(query.test), query.test.labels, query.validation.labels
    margin, loss = (log_odds, cross_entropy) if task.has_classes else (task.margin, _loss_of(task))
    before, loss_before = margin(base[:m], labels), loss(base[m:], y).mean()
    shifts, margins, losses = [], [], []
    for found in outputs:
        shifts.append(shift(found[:m], base[:m], task))
        margins.append(margin(found[:m], labels) - before)
        losses.append(loss(found[m:], y).mean() - loss_before)
    count = len(query.groups)
    return Effects(
        shift=torch.stack(shifts[:count]).numpy(),
        margin=torch.stack(margins[:count]).numpy(),
        validation=torch.stack(losses[:count]).numpy(),
        unions=torch.stack(margins)[count:].numpy(),
        base=before.numpy(),
    )


def shift(outputs: Tensor, base: Tensor, task: Task = CLASSIFICATION) -> Tensor:
    """Dist_1 ``(..., m)``: squared change of the prediction, for outputs ``(..., m, L)`` and ``(m, L)``."""
    return (task.mean(outputs.double()) - task.mean(base.double())).square().sum(-1)


def _loss_of(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of each sample, in double precision."""
    return lambda outputs, labels: task.losses(outputs.double(), labels)


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Loss ``(..., m)`` of each sample, for logits ``(..., m, L)``."""
    logs = outputs.double().log_softmax(-1)
    return -logs.gather(-1, labels.expand(logs.shape[:-1])[..., None])[..., 0]


def log_odds(outputs: Tensor, labels: Tensor) -> Tensor:
    """Margin ``(..., m)``: log p/(1 − p) of the correct class, a decreasing function of the loss."""
    outputs = outputs.double()
    right = torch.nn.functional.one_hot(labels, outputs.shape[-1]).bool().expand(outputs.shape)
    return outputs[right].reshape(outputs.shape[:-1]) - outputs.masked_fill(right, -torch.inf).logsumexp(-1)
