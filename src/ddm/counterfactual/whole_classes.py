"""Models in which a removal of all groups of a class uses the displacement of the class.

The displacements of a class's groups add up to first order only. The class's own displacement also closes its output
(``ddm.distil.response.whole_class``), as a training without the class does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.kept_models import KeptModels
from ddm.data.inputs import X
from ddm.distil.distilled import Distilled
from ddm.distil.kept import KeptResponses
from ddm.groups.partition import Partition
from ddm.training.target import Target


class NestedModels(Models):
    """Models without groups that lie within classes.

    groups:  the models without some groups
    classes: the models without some classes
    """

    def __init__(self, groups: Models, classes: Models, partition: Partition) -> None:
        self.target, self.groups, self.classes, self.own = groups.target, groups, classes, groups.own
        parents = np.asarray(partition.parents)
        self._members = torch.as_tensor(np.unique(parents)[:, None] == parents)

    def __len__(self) -> int:
        """K, the number of groups."""
        return len(self.groups)

    @property
    def usable(self) -> np.ndarray:
        """True for groups that can be removed ``(K,)``."""
        return self.groups.usable

    @property
    def has_directions(self) -> bool:
        """True if every model is θ_τ plus multiples of fixed directions."""
        return self.groups.has_directions

    def check_usable(self, removed: np.ndarray) -> None:
        """Refuse to remove a group that cannot be removed; ``removed (K,)``."""
        self.groups.check_usable(removed)

    def directions(self, groups: Tensor | None) -> Tensor:
        """d_κ ``(B, P)`` of some groups, or of all."""
        return self.groups.directions(groups)

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` for M perturbations ``removed (M, K)``."""
        rest, whole = self._split(self._check(removed))
        models = self.groups.parameters(rest)
        some = whole.any(1)
        if some.any():
            models[some] += self.classes.parameters(whole[some]) - self.target.theta
        return models

    def _linear(self, removed: Tensor, x: X) -> Iterator[Tensor]:
        rest, whole = self._split(removed)
        stacks = super()._linear(rest, x)
        yield next(stacks)
        gone = whole.any(0)
        changes, start = self.classes.changes(gone.nonzero()[:, 0], x), 0
        for logits in stacks:
            part = whole[start : start + len(logits), gone].to(changes)
            yield logits + torch.einsum("mk,knl->mnl", part, changes)
            start += len(logits)

    def _split(self, removed: Tensor) -> tuple[Tensor, Tensor]:
        """The groups ``(M, K)`` that are removed alone, and the classes ``(M, L)`` that are removed completely."""
        gone = removed == 1
        whole = ~(self._members & ~gone[:, None]).any(2)
        inside = (whole[:, :, None] & self._members).any(1)
        return torch.where(inside, torch.zeros_like(removed), removed), whole


def answering_models(target: Target, partition: Partition, distilled: Distilled) -> tuple[Models, Models | None]:
    """The models without some groups, and those without some classes, from which answers come.

    The displacement of a class is the sum of its groups' displacements, except in response matching.
    """
    if distilled.responses is not None:
        return _from_responses(target, partition, distilled.responses)
    assert distilled.synset is not None
    groups, upper = Counterfactuals(target, distilled.synset), distilled.class_synset
    if upper is None:
        return groups, None
    classes = Counterfactuals(target, upper)
    return (NestedModels(groups, classes, partition) if upper.shared else groups), classes


def _from_responses(target: Target, partition: Partition, responses: KeptResponses) -> tuple[Models, Models | None]:
    groups = KeptModels(target, responses.clusters)
    if not len(responses.classes):
        return groups, None
    classes = KeptModels(target, responses.classes)
    return NestedModels(groups, classes, partition), classes
