"""Kept responses: the displacement of every group and class in half precision, from which answers come.

Half precision holds numbers from 6e-8 to 65,504. So each row Δ_κ is divided by a scale of its own, which brings its
largest entry to 2¹⁵: entries down to 2⁻²⁹ of the largest keep 11 significant bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddm.compute.tensors import read_finite, read_metadata, write_tensors
from ddm.compute.validation import are_unique_names
from ddm.curvature.damping import check_facts
from ddm.distil.origin import check_origin
from ddm.distil.settings import Settings
from ddm.errors import InputError
from ddm.plots.units import size_text

_LARGEST = 2.0**15
"""Largest entry of a row that is stored."""

_LARGE = 2**20
"""Networks with more parameters than this get no synset by default."""

_LEVELS = {"clusters": ("cluster_scales", "cluster_own"), "classes": ("class_scales", "class_own")}
"""The tensors of a file: the values of each level, their scales and own shares."""


def kept_bytes(groups: int, parameters: int) -> int:
    """Bytes of the kept responses of K groups and classes together: P numbers, a scale and an own share each."""
    return groups * (2 * parameters + 8)


def keeps_responses(settings: Settings, groups: int, parameters: int) -> bool:
    """True if a matching with these settings keeps the responses of K groups and classes: they fit the budget."""
    return settings.matching == "response" and kept_bytes(groups, parameters) <= settings.keep * 2**30


def makes_synset(settings: Settings, groups: int, parameters: int) -> bool:
    """True if a matching encodes the displacements of K groups and classes in synsets right away.

    By default it does not for a large network whose responses are kept: the encoding would take longer than all else.
    """
    if settings.synset is not None:
        return settings.synset
    return parameters <= _LARGE or not keeps_responses(settings, groups, parameters)


@dataclass(frozen=True, eq=False)
class Moved:
    """Displacements of the target's parameters as they were computed.

    names: names of K groups
    rows:  Δ_κ ``(K, P)``
    own:   u_κ ``(K,)``, each group's own share of the curvature
    """

    names: tuple[str, ...]
    rows: Tensor
    own: Tensor


@dataclass(frozen=True, eq=False)
class Displacements:
    """One displacement of the target's parameters for each of K groups, in half precision.

    names:  names of the groups
    values: ``(K, P)`` in half precision, each row divided by its scale
    scales: ``(K,)`` in single precision
    own:    u_κ ``(K,)`` in single precision, each group's own share of the curvature
    """

    names: tuple[str, ...]
    values: Tensor
    scales: Tensor
    own: Tensor

    @classmethod
    def of(cls, moved: Moved) -> Displacements:
        """Round displacements to half precision."""
        rows = moved.rows.detach().float().cpu()
        scales = (rows.abs().amax(1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        return cls(moved.names, (rows / scales[:, None]).half(), scales, moved.own.float().cpu())

    @classmethod
    def join(cls, parts: Sequence[Displacements], names: Sequence[str]) -> Displacements:
        """The displacements of all parts, in the order of ``names``."""
        position = {name: number for number, name in enumerate(name for part in parts for name in part.names)}
        order = torch.tensor([position[name] for name in names], dtype=torch.long)
        tensors = [torch.cat([getattr(part, key) for part in parts]) for key in ("values", "scales", "own")]
        if not torch.equal(order, torch.arange(len(order))):  # otherwise the values would be copied for nothing
            tensors = [tensor[order] for tensor in tensors]
        return cls(tuple(names), *tensors)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and own shares."""
        return self.values.nbytes + self.scales.nbytes + self.own.nbytes

    def part(self, groups: Sequence[int] | Tensor) -> Displacements:
        """The displacements of the groups with these numbers."""
        chosen = torch.as_tensor(groups, dtype=torch.long)
        names = tuple(self.names[group] for group in groups)
        return Displacements(names, self.values[chosen], self.scales[chosen], self.own[chosen])

    def rows(self) -> Tensor:
        """Δ_κ ``(K, P)`` in single precision."""
        return self.values.float() * self.scales[:, None]

    def moved(self) -> Moved:
        """The displacements in single precision, with names and own shares."""
        return Moved(self.names, self.rows(), self.own)

    def check(self) -> None:
        """Raise ``ValueError`` for displacements from a file whose fields are not consistent."""
        if not are_unique_names(self.names):
            raise ValueError("groups need unique names")
        if self.values.dtype != torch.float16 or self.values.dim() != 2 or len(self.values) != len(self):
            raise ValueError(f"values of shape {tuple(self.values.shape)} for {len(self)} groups")
        if self.scales.dtype != torch.float32 or self.scales.shape != (len(self),):
            raise ValueError(f"scales of shape {tuple(self.scales.shape)} for {len(self)} groups")
        if not bool((self.scales > 0).all() and (self.scales * torch.finfo(torch.float16).max).isfinite().all()):
            raise ValueError("a scale is not positive, or too large")
        if self.own.shape != (len(self),) or not bool(((self.own >= 0) & (self.own < 1)).all()):
            raise ValueError("the own shares of the curvature must be one number from 0 to 1 for each group")


@dataclass(frozen=True, eq=False)
class KeptResponses:
    """The kept responses of a datamodel.

    clusters: the response of every group
    classes:  the displacement of every class, with its closed output; empty if groups cut across classes
    damping:  how the damping was chosen, as in a synset
    origin:   fingerprints of the network, the target and the data that they were computed for
    """

    clusters: Displacements
    classes: Displacements
    damping: dict[str, float] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all values and scales."""
        return self.clusters.nbytes + self.classes.nbytes

    @classmethod
    def join(
        cls, parts: Sequence[KeptResponses], names: Sequence[str], class_names: Sequence[str], origin: Mapping[str, str]
    ) -> KeptResponses:
        """The responses of all blocks, in the order of the groups' and classes' names."""
        clusters = Displacements.join([part.clusters for part in parts], names)
        classes = Displacements.join([part.classes for part in parts], class_names)
        return replace(parts[0], clusters=clusters, classes=classes, origin=origin)

    def save(self, path: Path) -> None:
        """Write the responses to one safetensors file."""
        tensors: dict[str, Tensor] = {}
        metadata: dict[str, Any] = {"damping": self.damping, "origin": self.origin}
        for level, (scales, own) in _LEVELS.items():
            rows: Displacements = getattr(self, level)
            tensors |= {level: rows.values, scales: rows.scales, own: rows.own}
            metadata[level] = rows.names
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: Path) -> KeptResponses:
        """Read responses that ``save`` wrote. Entries of later versions are ignored."""
        metadata, tensors = read_metadata(path), read_finite(path)
        try:
            levels = {
                level: Displacements(tuple(metadata[level]), tensors[level], tensors[scales], tensors[own])
                for level, (scales, own) in _LEVELS.items()
            }
            kept = cls(**levels, damping=metadata["damping"], origin=metadata["origin"])
            kept._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' does not hold responses ({why}): restore it or make the run again.") from None
        return kept

    def _check(self) -> None:
        self.clusters.check()
        self.classes.check()
        if self.clusters.values.shape[1] != self.classes.values.shape[1]:
            raise ValueError("groups and classes have different numbers of parameters")
        if not isinstance(self.origin, dict) or not all(isinstance(part, str) for part in self.origin.values()):
            raise ValueError("the origin is not a table of names and words")
        check_facts(self.damping)

    def check_made_for(self, origin: Mapping[str, str]) -> None:
        """Refuse responses that were computed for another network, target or data, and say what differs."""
        check_origin("the kept responses were computed", self.origin, origin)

    def check_size(self, parameters: int) -> None:
        """Refuse responses that are not displacements of P parameters."""
        if (found := self.clusters.values.shape[1]) != parameters:
            raise InputError(
                f"the kept responses move {found:,} parameters, but the network has {parameters:,}: restore them or "
                "make the run again."
            )

    def __repr__(self) -> str:
        classes = f" and {len(self.classes):,} classes" if len(self.classes) else ""
        return f"KeptResponses of {len(self.clusters):,} groups{classes}, {size_text(self.nbytes)}"
