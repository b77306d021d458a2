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
from ddm.data.inputs import Inputs, X, rebuild, skeleton, tensor_of
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
    images:     ``(K, ipc, ...)``, normalised like the training samples, or ``(1, ipc, ...)`` that all groups share; for
                texts and the like a nesting of such tensors
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
    images: X
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
        tensors: dict[str, Tensor] = {name: getattr(self, key) for key, name in _STORED.items() if key != "images"}
        tensors |= _stored_images(self.images)
        tensors |= {} if self.own is None else {"own": self.own}
        metadata: dict[str, Any] = {"names": self.names, "steps": self.steps, "hard": self.hard, "shared": self.shared}
        metadata |= {"stopped": self.stopped, "damping": self.damping, "origin": self.origin}
        metadata |= {"inputs": skeleton(self.images)} if isinstance(self.images, Inputs) else {}
        write_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: Path | str) -> Synset:
        """Read a synset that ``save`` wrote."""
        metadata: dict[str, Any] = read_metadata(Path(path))
        tensors = read_finite(Path(path))
        try:
            images = _loaded_images(tensors, metadata)
            fields = {"images": images} | {key: tensors.pop(name) for key, name in _STORED.items() if key != "images"}
            synset = cls(**{**metadata, **tensors, **fields, "names": tuple(metadata["names"])})
            synset._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(f"'{path}' does not hold a synset ({why}): restore it or make the run again.") from None
        return synset

    def _check(self) -> None:
        """Raise ``ValueError`` for a synset from a file whose fields are not consistent."""
        check_fields(self)
        leaves = [self.images] if isinstance(self.images, Tensor) else self.images.leaves
        groups, rows = len(self), leaves[0].shape[:2]
        if not are_unique_names(self.names) or not groups or not 1 <= self.steps <= _MAX_STEPS:
            raise ValueError(f"groups need unique names, and the fine-tuning 1 to {_MAX_STEPS:,} steps")
        if rows[0] != (1 if self.shared else groups) or any(_is_no_input(leaf, rows, self.images) for leaf in leaves):
            raise ValueError(f"images of shape {tuple(leaves[0].shape)} for {groups} groups")
        if self.targets.dim() != 3 or self.targets.shape[:2] != (groups, rows[1]):
            raise ValueError(f"targets of shape {tuple(self.targets.shape)} for {groups} groups of {rows[1]} images")
        if any(tensor.shape != (groups,) for tensor in (self.step_sizes, self.alignment)):
            raise ValueError("lengths and alignment need one value for each group")
        numbers = [getattr(self, key) for key in _STORED if key != "images" or isinstance(self.images, Tensor)]
        if not all(tensor.is_floating_point() for tensor in numbers):
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

        if not isinstance(self.images, Tensor) or self.images.dim() != 5:
            raise InputError("only the images of a synset can be shown: this one holds other inputs.")
        if self.shared:
            return shared_synset(self, columns)
        return image_grid(self.images[:, 0], self.names, columns)

    def __repr__(self) -> str:
        stopped = f"; {len(self.stopped):,} of the groups could not be distilled" if self.stopped else ""
        return f"Synset: {len(self):,} groups with {self._image_count}, {self.nbytes / 1024:,.0f} KiB{stopped}"

    @property
    def _image_count(self) -> str:
        count, what = self.count, "images" if self.has_images else "samples"
        return f"{count:,} {what} that all groups share" if self.shared else f"{count:,} {what} each"

    @property
    def count(self) -> int:
        """Number of synthetic samples of each group, or of those that all groups share."""
        return int(self.targets.shape[1])

    @property
    def pictures(self) -> Tensor:
        """The inputs, if they are one tensor; others are refused."""
        return tensor_of(self.images)

    @property
    def has_images(self) -> bool:
        """True if the inputs are pictures."""
        return isinstance(self.images, Tensor) and self.images.dim() == 5

    def _repr_html_(self) -> str:
        facts = [
            ("groups", str(len(self))),
            ("images", self._image_count),
            ("size", f"{self.nbytes / 1024:,.0f} KiB"),
            ("mean alignment (1 is a perfect match)", f"{float(self.alignment[self.usable].mean()):.2f}"),
            ("groups that could not be distilled", ", ".join(self.stopped) or "none"),
        ]
        return html.table(("synset", ""), facts)


def _stored_images(images: X) -> dict[str, Tensor]:
    """The inputs as named tensors of a file."""
    if isinstance(images, Tensor):
        return {"images": images}
    return {f"images.{name}": leaf.contiguous() for name, leaf in images.named_leaves().items()}


def _loaded_images(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> X:
    """The inputs that ``_stored_images`` wrote; takes them out of ``tensors`` and ``metadata``."""
    if "inputs" not in metadata:
        return tensors.pop("images")
    return rebuild(metadata.pop("inputs"), lambda name: tensors.pop(f"images.{name}"))


def _is_no_input(leaf: Tensor, rows: torch.Size, images: X) -> bool:
    """True for a tensor that cannot be the inputs of a synset with so many groups and samples."""
    return leaf.dim() < (3 if leaf is images else 2) or leaf.shape[:2] != rows or 0 in leaf.shape


def _are_shares(values: Tensor, groups: int) -> bool:
    """True for one floating-point number per group, at least 0 and less than 1."""
    fits = values.shape == (groups,) and values.is_floating_point()
    return fits and bool(((values >= 0) & (values < 1)).all())
