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
from ddm.distil.synset import Synset
from ddm.groups.partition import Partition
from ddm.training.target import Target


class NestedCounterfactuals(Counterfactuals):
    """Counterfactuals of groups within classes, with a synset of the groups and one of the classes."""

    def __init__(self, target: Target, synset: Synset, classes: Counterfactuals, partition: Partition) -> None:
        super().__init__(target, synset)
        self.classes = classes
        parents = np.asarray(partition.parents)
        self._members = torch.as_tensor(np.unique(parents)[:, None] == parents)

    def parameters(self, removed: np.ndarray | Tensor) -> Tensor:
        """θ_p ``(M, P)`` for M perturbations ``removed (M, K)``."""
        rest, whole = self._split(self._check(removed))
        models = super().parameters(rest)
        some = whole.any(1)
        if some.any():
            models[some] += self.classes.parameters(whole[some]) - self.target.theta
        return models

    def _linear(self, removed: Tensor, x: Tensor) -> Iterator[Tensor]:
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


def group_models(
    target: Target, synset: Synset, classes: Counterfactuals | None, partition: Partition
) -> Counterfactuals:
    """The models without some groups of a partition; nested if response matching distilled the classes too."""
    if classes is None or not classes.synset.shared:
        return Counterfactuals(target, synset)
    return NestedCounterfactuals(target, synset, classes, partition)
