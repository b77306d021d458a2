"""Evidence: the networks that were retrained without some groups, and what follows from them for all effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddm.compute.tensors import read_intact, read_metadata, write_tensors
from ddm.compute.validation import are_unique_names
from ddm.counterfactual.displaced import forward_models
from ddm.counterfactual.reach import MAX_SHARE
from ddm.data.inputs import X
from ddm.distil.origin import check_origin
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.networks.state import State
from ddm.training.target import Target
from ddm.truth.posterior import Posterior, Spread
from ddm.truth.retraining import Retraining, group_rows

_ADVICE = "restore it, or delete it and run ddm refine again"

_FIXED = "fixed:"
"""Prefix of the names of buffers in a file."""

Removal = tuple[bytes, int]
"""A retraining: the mask of its removed groups as bytes, and its batch order."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """R retrained networks. Each batch order among them also has the network that was trained on all groups.

    names:   names of the K groups
    removed: the groups ``(R, K)`` that each network was trained without, as booleans; none for the training on all
    orders:  its batch order ``(R,)``; 0 is the target's own
    theta:   its parameters θ ``(R, P)``
    fixed:   its frozen parameters and buffers, by name, ``(R, ...)``
    origin:  fingerprints of the network, the target and the data that were retrained
    spread:  the parameters of the posterior
    """

    names: tuple[str, ...]
    removed: np.ndarray
    orders: np.ndarray
    theta: Tensor
    fixed: State
    origin: Mapping[str, str]
    spread: Spread = field(default_factory=Spread)

    @classmethod
    def collect(
        cls, retraining: Retraining, partition: Partition, removed: np.ndarray, orders: np.ndarray, data: str
    ) -> Evidence:
        """The networks of M retrainings ``(M, K)`` in batch orders ``(M,)``, and those of their orders on all groups.

        Removals that are not ``informative`` are left out.

        data: fingerprint of the training set
        """
        usable = informative(partition, removed)
        if not usable.any():
            raise InputError("each of these retrainings lacks too much data to say something about single groups.")
        removed, orders = removed[usable], orders[usable]
        nothing = np.zeros((1, len(partition)), dtype=bool)
        target, states, rows, found = retraining.target, [], [], []
        for order in np.unique(orders):
            masks = np.unique(np.vstack([nothing, removed[orders == order]]), axis=0)
            states += list(retraining.states(group_rows(partition, masks), int(order)))
            rows.append(masks)
            found += [order] * len(masks)
        fixed = [target.flat.fixed(state) for state in states]
        return cls(
            names=partition.names,
            removed=np.vstack(rows),
            orders=np.array(found, dtype=np.int64),
            theta=torch.stack([target.flat.vector(state) for state in states]),
            fixed={name: torch.stack([tensors[name] for tensors in fixed]) for name in fixed[0]},
            origin=target.origin(data),
        )

    def __len__(self) -> int:
        """Number of retrainings without some groups."""
        return len(self.trials)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters and buffers."""
        return self.theta.nbytes + sum(tensor.nbytes for tensor in self.fixed.values())

    @cached_property
    def trials(self) -> np.ndarray:
        """Positions of the networks that were trained without some groups."""
        return np.flatnonzero(self.removed.any(1))

    @cached_property
    def keys(self) -> list[Removal]:
        """The removed groups and the batch order of each network, by which networks are told apart."""
        return [(row.tobytes(), int(order)) for row, order in zip(self.removed, self.orders, strict=True)]

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior of effects, given these retrainings."""
        return Posterior(self.removed[self.trials], self.orders[self.trials], self.spread)

    @property
    def alone(self) -> np.ndarray:
        """True for groups ``(K,)`` that one retraining, in the target's batch order, left out alone."""
        single = (self.removed.sum(1) == 1) & (self.orders == 0)
        left: np.ndarray = self.removed[single].any(0)
        return left

    def join(self, other: Evidence) -> Evidence:
        """All retrainings of both, each once."""
        other.check_made_for(self.origin, self.names)
        known = set(self.keys)
        new = [position for position, key in enumerate(other.keys) if key not in known]
        added = other._rows(np.array(new, dtype=np.int64))
        return replace(
            self,
            removed=np.vstack([self.removed, added.removed]),
            orders=np.concatenate([self.orders, added.orders]),
            theta=torch.cat([self.theta, added.theta]),
            fixed={name: torch.cat([tensor, added.fixed[name]]) for name, tensor in self.fixed.items()},
        )

    def without(self, keys: Sequence[Removal]) -> Evidence | None:
        """The evidence without some retrainings; None if none is left. The posterior's parameters stay as they are."""
        dropped = set(keys)
        left = [position for position, key in enumerate(self.keys) if key not in dropped or not any(key[0])]
        found = self._rows(np.array(left, dtype=np.int64))
        return found if len(found) else None

    def _rows(self, rows: np.ndarray) -> Evidence:
        chosen = torch.as_tensor(rows)
        return replace(
            self,
            removed=self.removed[rows],
            orders=self.orders[rows],
            theta=self.theta[chosen],
            fixed={name: tensor[chosen] for name, tensor in self.fixed.items()},
        )

    def bases(self) -> np.ndarray:
        """For each trial ``(R,)``, the position of the network that was trained on all groups in its batch order."""
        all_groups = {int(self.orders[i]): i for i in np.flatnonzero(~self.removed.any(1))}
        return np.array([all_groups[int(order)] for order in self.orders[self.trials]], dtype=np.int64)

    def changes(self, target: Target, x: X) -> Tensor:
        """The change of the logits ``(R, n, L)`` of inputs ``x (n, ...)`` by each trial, within its batch order."""
        outputs = forward_models(target.flat, self.theta.to(target.device), self._fixed_on(target), x)
        return outputs[self.trials] - outputs[self.bases()]

    def _fixed_on(self, target: Target) -> State:
        return {name: tensor.to(target.device) for name, tensor in self.fixed.items()}

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        tensors = {
            "removed": torch.as_tensor(self.removed).to(torch.uint8),
            "orders": torch.as_tensor(self.orders),
            "theta": self.theta,
            **{f"{_FIXED}{name}": tensor for name, tensor in self.fixed.items()},
        }
        write_tensors(path, tensors, {"names": self.names, "origin": self.origin, "spread": self.spread.to_dict()})

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read evidence that ``save`` wrote. Entries of later versions are ignored."""
        tensors, metadata = read_intact(path, _ADVICE), read_metadata(path)
        try:
            found = cls(
                names=tuple(metadata["names"]),
                removed=tensors["removed"].bool().numpy(),
                orders=tensors["orders"].numpy(),
                theta=tensors["theta"],
                fixed={name.removeprefix(_FIXED): part for name, part in tensors.items() if name.startswith(_FIXED)},
                origin=metadata["origin"],
                spread=Spread.from_dict(metadata["spread"]),
            )
            _check(found, tensors["removed"])
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' does not hold evidence ({why}): {_ADVICE}.") from None
        return found

    def check_made_for(self, origin: Mapping[str, Any], names: Sequence[str]) -> None:
        """Refuse evidence about another network, target, data or groups."""
        check_origin("the evidence was retrained", self.origin, origin)
        if self.names != tuple(names):
            raise InputError(f"the evidence is about other groups than those of this run: {_ADVICE}.")

    def check_size(self, target: Target) -> None:
        """Refuse networks with tensors of other shapes or types than the target's."""
        wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in target.fixed.items()}
        given = {name: (tensor.shape[1:], tensor.dtype) for name, tensor in self.fixed.items()}
        theta = self.theta.shape[1:], self.theta.dtype
        if theta != (target.theta.shape, target.theta.dtype) or given != wanted:
            raise InputError(f"the evidence holds other networks than the one of this run: {_ADVICE}.")


def informative(partition: Partition, removed: np.ndarray) -> np.ndarray:
    """True for removals ``(M, K)`` whose retraining says something about single groups ``(M,)``.

    Unions of much of the data do not: what their groups do together is more than what each does. Nor do unions of
    groups that share samples: their effect is not the sum of the groups' effects.
    """
    small = (partition.share_of(removed) <= MAX_SHARE) & partition.are_disjoint(removed)
    usable: np.ndarray = ((removed.sum(1) == 1) | small) & ~removed.all(1)
    return usable


def _check(found: Evidence, removed: Tensor) -> None:
    """Raise ``ValueError`` for evidence from a file whose fields are not consistent."""
    count = len(found.orders)
    if not are_unique_names(found.names) or removed.shape != (count, len(found.names)):
        raise ValueError("its removals are not those of its groups")
    if removed.dtype != torch.uint8 or bool((removed > 1).any()) or bool(removed.bool().all(1).any()):
        raise ValueError("its removals are not masks that leave a group")
    if found.orders.dtype != np.int64 or found.orders.ndim != 1 or (found.orders < 0).any():
        raise ValueError("its batch orders are not numbers")
    if found.theta.dim() != 2 or not found.theta.is_floating_point():
        raise ValueError("its parameters are not one vector for each retraining")
    if any(len(tensor) != count for tensor in (found.theta, *found.fixed.values()) if tensor.dim()):
        raise ValueError("its networks are not one for each retraining")
    if any(not tensor.dim() for tensor in found.fixed.values()) or len(set(found.keys)) != count or not len(found):
        raise ValueError("its retrainings are not different ones")
    if not set(found.orders.tolist()) <= set(found.orders[~found.removed.any(1)].tolist()):
        raise ValueError("a batch order lacks the training on all groups")
    if not isinstance(found.origin, dict) or not all(isinstance(part, str) for part in found.origin.values()):
        raise ValueError("its origin is not a table of names and words")
