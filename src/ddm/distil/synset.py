"""The synset S_1 … S_K: for each group a few synthetic samples that undo its influence on the target."""

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
from ddm.curvature.damping import check_facts
from ddm.distil.origin import check_origin
from ddm.errors import InputError
from ddm.plots import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_STEPS = 100_000
"""Maximum fine-tuning steps that a file may declare, because every counterfactual repeats them."""

_STORED = {"images": "images", "targets": "targets", "step_sizes": "lengths", "alignment": "alignment"}
"""The tensors of a synset, with their names in files."""


@dataclass(frozen=True, eq=False)
class Synset:
    """Synthetic samples for each of K groups.

    names:      names of the groups
    images:     ``(K, ipc, ...)``, normalised like the training samples, or ``(1, ipc, ...)`` that all groups share
    targets:    ``(K, ipc, L)`` signed soft targets whose rows sum to 1; one-hot if labels are hard
    step_sizes: ``(K,)`` α_κ, the sum of the fine-tuning's step sizes: θ_κ ≈ θ_τ − α_κ ∇L(θ_τ; S_κ). Positive values
                descend the loss of the synset; negative ones ascend it, as for forward matching
    alignment:  ``(K,)`` cosine of that step with what it was matched to; 1 is a perfect match. Reverse and forward
                matching compare it with the pull ḡ_κ of the group, response matching with the change of the outputs
    steps:      T, the number of fine-tuning steps among which α_κ is divided
    hard:       True if targets stand for plain labels
    shared:     True if all groups have the same images; their loss is then the cross-entropy, whatever the target's is
    stopped:    by name of a group, why its matching was stopped; such a group cannot be removed
    own:        ``(K,)`` u_κ, each group's own share of the curvature along its response, at least 0 and less than 1;
                models with other weights of groups need it. None, as in older files, counts as 0
    damping:    how the damping of response matching was chosen: the multiple ``scale``, and the gain of each tried
    origin:     fingerprints of the network, the target and the data that it was distilled for
    """

    names: tuple[str, ...]
    images: Tensor
    targets: Tensor
    step_sizes: Tensor
    alignment: Tensor
    steps: int = 1
    hard: bool = False
    shared: bool = False
    own: Tensor | None = None
    stopped: dict[str, str] = field(default_factory=dict)
    damping: dict[str, float] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def usable(self) -> Tensor:
        """True for groups that can be removed ``(K,)``, because their matching was not stopped."""
        return torch.tensor([name not in self.stopped for name in self.names])

    @property
    def error(self) -> Tensor:
        """Share of the wanted change that the step misses ``(K,)``: 0 is a perfect match."""
        return 1 - self.alignment.square()

    @property
    def nbytes(self) -> int:
        """Bytes of images, targets and step sizes."""
        return sum(tensor.nbytes for tensor in (self.images, self.targets, self.step_sizes))

    @classmethod
    def join(cls, parts: Sequence[Synset], names: Sequence[str]) -> Synset:
        """One synset of all groups of the parts, in the order of ``names``."""
        position = {name: number for number, name in enumerate(name for part in parts for name in part.names)}
        order = torch.tensor([position[name] for name in names])
        keys = ["targets", "step_sizes", "alignment"]
        keys += [] if parts[0].shared else ["images"]
        keys += ["own"] if all(part.own is not None for part in parts) else []
        tensors: dict[str, Any] = {key: torch.cat([getattr(part, key) for part in parts])[order] for key in keys}
        stopped = {name: why for part in parts for name, why in part.stopped.items()}
        return replace(parts[0], names=tuple(names), stopped=stopped, **{"own": None, **tensors})

    def save(self, path: Path | str) -> None:
        """Write the synset to one safetensors file."""
        tensors = {name: getattr(self, key) for key, name in _STORED.items()}
        tensors |= {} if self.own is None else {"own": self.own}
        metadata: dict[str, Any] = {"names": self.names, "steps": self.steps, "hard": self.hard, "shared": self.shared}
        metadata |= {"stopped": self.stopped, "damping": self.damping, "origin": self.origin}
        write_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: Path | str) -> Synset:
        """Read a synset that ``save`` wrote."""
        metadata: dict[str, Any] = read_metadata(Path(path))
        tensors = read_finite(Path(path))
        try:
            fields = {key: tensors.pop(name) for key, name in _STORED.items()}
            synset = cls(**{**metadata, **tensors, **fields, "names": tuple(metadata["names"])})
            synset._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' does not hold a synset ({why}): restore it or make the run again.") from None
        return synset

    def _check(self) -> None:
        """Raise ``ValueError`` for a synset from a file whose fields are not consistent."""
        check_fields(self)
        groups, rows = len(self), self.images.shape[:2]
        if not are_unique_names(self.names) or not groups or not 1 <= self.steps <= _MAX_STEPS:
            raise ValueError(f"groups need unique names, and the fine-tuning 1 to {_MAX_STEPS:,} steps")
        if self.images.dim() < 3 or rows[0] != (1 if self.shared else groups) or 0 in self.images.shape:
            raise ValueError(f"images of shape {tuple(self.images.shape)} for {groups} groups")
        if self.targets.dim() != 3 or self.targets.shape[:2] != (groups, rows[1]):
            raise ValueError(f"targets of shape {tuple(self.targets.shape)} for {groups} groups of {rows[1]} images")
        if any(tensor.shape != (groups,) for tensor in (self.step_sizes, self.alignment)):
            raise ValueError("lengths and alignment need one value for each group")
        if not all(getattr(self, key).is_floating_point() for key in _STORED):
            raise ValueError("images, targets, lengths and alignment must be floating-point tensors")
        if self.own is not None and not _are_shares(self.own, groups):
            raise ValueError("own needs one value for each group, at least 0 and less than 1")
        check_facts(self.damping)
        if not self.stopped.keys() <= set(self.names):
            raise ValueError("stopped names groups that do not exist")

    def check_made_for(self, origin: Mapping[str, str]) -> None:
        """Refuse a synset that was distilled for another network, target or data, and say what differs."""
        check_origin("the synset was distilled", self.origin, origin)

    def plot(self, columns: int = 10) -> Figure:
        """The images in rows of ``columns``, each scaled to its own range.

        If all groups share the images, the figure also shows each group's soft targets: the mean of each class over
        the images, minus its mean over all groups.
        """
        from ddm.plots import image_grid, shared_synset

        if self.images.dim() != 5:
            raise InputError(f"only images can be shown, not inputs of shape {tuple(self.images.shape[2:])}.")
        if self.shared:
            return shared_synset(self, columns)
        return image_grid(self.images[:, 0], self.names, columns)

    def __repr__(self) -> str:
        stopped = f"; {len(self.stopped):,} of the groups could not be distilled" if self.stopped else ""
        return f"Synset: {len(self):,} groups with {self._image_count}, {self.nbytes / 1024:,.0f} KiB{stopped}"

    @property
    def _image_count(self) -> str:
        count = self.images.shape[1]
        return f"{count:,} images that all groups share" if self.shared else f"{count:,} images each"

    def _repr_html_(self) -> str:
        facts = [
            ("groups", str(len(self))),
            ("images", self._image_count),
            ("size", f"{self.nbytes / 1024:,.0f} KiB"),
            ("mean alignment (1 is a perfect match)", f"{float(self.alignment[self.usable].mean()):.2f}"),
            ("groups that could not be distilled", ", ".join(self.stopped) or "none"),
        ]
        return html.table(("synset", ""), facts)


def _are_shares(values: Tensor, groups: int) -> bool:
    """True for one floating-point number per group, at least 0 and less than 1."""
    fits = values.shape == (groups,) and values.is_floating_point()
    return fits and bool(((values >= 0) & (values < 1)).all())
