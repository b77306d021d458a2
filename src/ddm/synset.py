"""The synset S_1 … S_K: a few synthetic samples a group that undo its influence on the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddm import html
from ddm.errors import InputError
from ddm.files import read_metadata, read_tensors, write_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def __len__(self) -> int:
        return len(self.names)

    @property
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
        metadata["stopped"] = self.stopped
        write_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: Path | str) -> Synset:
        """Read a synset that ``save`` wrote."""
        metadata: dict[str, Any] = read_metadata(Path(path))
        try:
            contents: dict[str, Any] = {**metadata, **read_tensors(Path(path)), "names": tuple(metadata["names"])}
            return cls(**contents)
        except (KeyError, TypeError):
            raise InputError(f"'{path}' does not hold a synset: give the run it belongs to again.") from None

    def plot(self, columns: int = 10) -> Figure:
        """The images, ``columns`` a row, each scaled to its own range; where groups share them, also what their soft
        targets ask: the mean of each class over the images, less its mean over groups."""
        from ddm.plots import image_grid, shared_synset

        if self.images.dim() != 5:
            raise InputError(f"only images can be shown, not inputs of shape {tuple(self.images.shape[2:])}.")
        if self.shared:
            return shared_synset(self, columns)
        return image_grid(self.images[:, 0], self.names, columns)

    def _repr_html_(self) -> str:
        count = self.images.shape[1]
        images = f"{count} images that all groups share" if self.shared else f"{count} images a group"
        facts = [
            ("groups", str(len(self))),
            ("images", images),
            ("size", f"{self.nbytes / 1024:,.0f} KiB"),
            ("mean alignment (1 is a perfect match)", f"{float(self.alignment[self.usable].mean()):.2f}"),
            ("groups that could not be distilled", ", ".join(self.stopped) or "none"),
        ]
        return html.table(("synset", ""), facts)
