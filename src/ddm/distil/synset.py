"""The synset S_1 … S_K: a few synthetic samples a group that undo its influence on the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddm.compute.tensors import read_finite, read_metadata, write_tensors
from ddm.compute.validation import are_unique_names, check_fields
from ddm.errors import InputError
from ddm.plots import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_STEPS = 100_000
"""Of a fine-tuning: a file that asks for more would keep a question from ever being answered."""

_ORIGIN = {
    "network": "another network",
    "data": "other training data",
    "target": "another training of the same network on the same data",
}
"""What can differ, and how it is called; what comes first explains what comes after."""


@dataclass(frozen=True, eq=False)
class Synset:
    """Synthetic samples for each of K groups.

    names:   of the groups
    images:  ``(K, ipc, ...)``, normalised as the training samples are, or ``(1, ipc, ...)`` that all groups share
    targets: ``(K, ipc, L)`` signed soft targets, rows summing to 1; one-hot where labels are hard
    lengths: ``(K,)`` α_κ, the total step of the fine-tuning: θ_κ ≈ θ_τ − α_κ ∇L(θ_τ; S_κ). Positive descends;
             negative climbs, as forward-matched synsets must
    alignment: ``(K,)`` cosine of that step with what it was matched to, the pull ḡ_κ that is missing without the group
             or, for response matching, the change of outputs Δ_κ makes: 1 is a perfect match
    steps:   T, the fine-tuning steps that share α_κ
    hard:    whether targets stand for plain labels
    shared:  whether all groups have the same images; their loss is then the cross-entropy, whatever the target's is
    stopped: why the matching of a group was stopped; such a group cannot be removed
    origin:  the network, the target and the data it was distilled for, as text that can be compared
    """

    names: tuple[str, ...]
    images: Tensor
    targets: Tensor
    lengths: Tensor
    alignment: Tensor
    steps: int = 1
    hard: bool = False
    shared: bool = False
    stopped: dict[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def usable(self) -> Tensor:
        """Which groups can be removed ``(K,)``: those whose matching was not stopped."""
        return torch.tensor([name not in self.stopped for name in self.names])

    @property
    def error(self) -> Tensor:
        """What the step misses of what it was matched to ``(K,)``, 0 for nothing and 1 for all of it."""
        return 1 - self.alignment.square()

    @property
    def nbytes(self) -> int:
        """Bytes of images, targets and lengths."""
        return sum(tensor.nbytes for tensor in (self.images, self.targets, self.lengths))

    @classmethod
    def join(cls, parts: Sequence[Synset], names: Sequence[str]) -> Synset:
        """Parts put together in the order of ``names``."""
        position = {name: number for number, name in enumerate(name for part in parts for name in part.names)}
        order = torch.tensor([position[name] for name in names])
        keys = ("targets", "lengths", "alignment") if parts[0].shared else ("images", "targets", "lengths", "alignment")
        tensors: dict[str, Any] = {key: torch.cat([getattr(part, key) for part in parts])[order] for key in keys}
        stopped = {name: why for part in parts for name, why in part.stopped.items()}
        return replace(parts[0], names=tuple(names), stopped=stopped, **tensors)

    def save(self, path: Path | str) -> None:
        """Write the synset to one safetensors file."""
        tensors = {key: getattr(self, key) for key in ("images", "targets", "lengths", "alignment")}
        metadata: dict[str, Any] = {"names": self.names, "steps": self.steps, "hard": self.hard, "shared": self.shared}
        metadata |= {"stopped": self.stopped, "origin": self.origin}
        write_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: Path | str) -> Synset:
        """Read a synset that ``save`` wrote."""
        metadata: dict[str, Any] = read_metadata(Path(path))
        tensors = read_finite(Path(path))
        try:
            synset = cls(**{**metadata, **tensors, "names": tuple(metadata["names"])})
            synset._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' does not hold a synset ({why}): give the run it belongs to again.") from None
        return synset

    def _check(self) -> None:
        """Refuse fields that do not hold what they should, for synsets that come from files."""
        check_fields(self)
        groups, rows = len(self), self.images.shape[:2]
        if not are_unique_names(self.names) or not groups or not 1 <= self.steps <= MOST_STEPS:
            raise ValueError("groups need names of their own, and the fine-tuning steps")
        if self.images.dim() < 3 or rows[0] != (1 if self.shared else groups) or 0 in self.images.shape:
            raise ValueError(f"images of shape {tuple(self.images.shape)} for {groups} groups")
        if self.targets.dim() != 3 or self.targets.shape[:2] != (groups, rows[1]):
            raise ValueError(f"targets of shape {tuple(self.targets.shape)} for {groups} groups of {rows[1]} images")
        if any(tensor.shape != (groups,) for tensor in (self.lengths, self.alignment)):
            raise ValueError("lengths or alignment are not one a group")
        if not all(one.is_floating_point() for one in (self.images, self.targets, self.lengths, self.alignment)):
            raise ValueError("images, targets, lengths and alignment must be of floating point")
        if not self.stopped.keys() <= set(self.names):
            raise ValueError("reasons for groups that are not there")

    def check_made_for(self, origin: Mapping[str, str]) -> None:
        """Refuse a synset that was distilled for something else, and say what differs."""
        for what, told in _ORIGIN.items():
            if what in self.origin and what in origin and self.origin[what] != origin[what]:
                here, there = (known[what].partition(":")[0] for known in (origin, self.origin))
                kinds = f" ({there} there, {here} here)" if what == "network" and here != there else ""
                raise InputError(f"the synset was distilled for {told}{kinds}: give the one that belongs here.")

    def plot(self, columns: int = 10) -> Figure:
        """The images, ``columns`` a row, each scaled to its own range; where groups share them, also what their soft
        targets ask: the mean of each class over the images, less its mean over groups."""
        from ddm.plots import image_grid, shared_synset

        if self.images.dim() != 5:
            raise InputError(f"only images can be shown, not inputs of shape {tuple(self.images.shape[2:])}.")
        if self.shared:
            return shared_synset(self, columns)
        return image_grid(self.images[:, 0], self.names, columns)

    def __repr__(self) -> str:
        stopped = f"; {len(self.stopped):,} of the groups could not be distilled" if self.stopped else ""
        return f"Synset: {len(self):,} groups with {self._counted}, {self.nbytes / 1024:,.0f} KiB{stopped}"

    @property
    def _counted(self) -> str:
        count = self.images.shape[1]
        return f"{count:,} images that all groups share" if self.shared else f"{count:,} images each"

    def _repr_html_(self) -> str:
        facts = [
            ("groups", str(len(self))),
            ("images", self._counted),
            ("size", f"{self.nbytes / 1024:,.0f} KiB"),
            ("mean alignment (1 is a perfect match)", f"{float(self.alignment[self.usable].mean()):.2f}"),
            ("groups that could not be distilled", ", ".join(self.stopped) or "none"),
        ]
        return html.table(("synset", ""), facts)
