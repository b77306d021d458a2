"""The trajectory θ_0 … θ_τ of a training, a checkpoint an entry, in memory or on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddm.compute.files import check_hash, read_metadata, read_whole, write_tensors
from ddm.errors import InputError
from ddm.networks.flat import State
from ddm.plots import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


REACH = "reach.safetensors"
"""The file of ``Trajectory.reach``."""

_CURE = "restore it or make the run again"


class Trajectory:
    """Checkpoints of one training, in order.

    With a ``directory`` each checkpoint is a safetensors file there, written when it is appended and read when
    it is asked for, so that a trajectory may be larger than memory. Without one they are kept in memory.

    steps:     optimiser steps made before each checkpoint
    lengths:   learning rates summed over those steps (how far plain gradient descent could have gone); NaN if unknown
    reach:     the same for each parameter by the last checkpoint, where the optimiser scales steps one by one
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory).absolute() if directory is not None else None
        self.steps: list[int] = []
        self.lengths: list[float] = []
        self.reach: State | None = None
        self._states: list[State] = []
        self._hashes: Mapping[str, str] | None = None

    @classmethod
    def open(cls, directory: Path | str) -> Trajectory:
        """The trajectory that lies in a directory."""
        trajectory = cls(directory)
        while (path := trajectory._path(len(trajectory))).exists():
            metadata = read_metadata(path)
            try:
                step, length = int(metadata["step"]), metadata["length"]
                length = math.nan if length is None else float(length)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise InputError(f"'{path}' is not a checkpoint: restore it or make the run again.") from None
            if step < (trajectory.steps or [0])[-1] or math.isinf(length):
                raise InputError(f"'{path}' is not the checkpoint after the one before it: restore it.")
            trajectory.steps.append(step)
            trajectory.lengths.append(length)
        if trajectory._reach_path.exists():
            trajectory.reach = _read(trajectory._reach_path)
        return trajectory

    def expect(self, hashes: Mapping[str, str]) -> None:
        """Check each checkpoint against these hashes of files, by file name, when it is read."""
        self._hashes = hashes

    def _path(self, t: int) -> Path:
        assert self.directory is not None
        return self.directory / f"{t:05d}.safetensors"

    @property
    def _reach_path(self) -> Path:
        assert self.directory is not None
        return self.directory / REACH

    def append(
        self, state: Mapping[str, Tensor], step: int, length: float, reach: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add a checkpoint."""
        if self.directory is None:
            self._states.append({name: tensor.detach().cpu().clone() for name, tensor in state.items()})
        else:
            if not self.steps:  # in place of what another training left here
                Trajectory.open(self.directory).truncate(0)
            known = None if math.isnan(length) else length
            if reach is not None:
                write_tensors(self._reach_path, reach)
            write_tensors(self._path(len(self)), state, {"step": step, "length": known})
        self.steps.append(step)
        self.lengths.append(length)
        self.reach = None if reach is None else {name: tensor.detach().cpu().clone() for name, tensor in reach.items()}

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` checkpoints."""
        for t in reversed(range(count, len(self))):  # from the end, so that no gap is left if this is cut short
            if self.directory is not None:
                self._path(t).unlink()
        if count == 0 and self.directory is not None and self._reach_path.exists():
            self._reach_path.unlink()
        del self.steps[count:], self.lengths[count:], self._states[count:]

    def save(self, directory: Path | str) -> Trajectory:
        """Copy the trajectory to a directory, and return the copy there."""
        copy = Trajectory(directory)
        for state, step, length in zip(self, self.steps, self.lengths, strict=True):
            copy.append(state, step, length, self.reach if step == self.steps[-1] else None)
        return copy

    def some(self, checkpoints: Sequence[int]) -> Trajectory:
        """A trajectory of these checkpoints only, in memory."""
        chosen = Trajectory()
        chosen._states = [self[t] for t in checkpoints]
        chosen.steps = [self.steps[t] for t in checkpoints]
        chosen.lengths = [self.lengths[t] for t in checkpoints]
        return chosen

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, t: int) -> State:
        if not -len(self) <= t < len(self):
            raise IndexError(f"checkpoint {t} of {len(self)}")
        t %= len(self)
        if self.directory is None:
            return self._states[t]
        path = self._path(t)
        state = _read(path)  # first, as it tells a damaged file from one of another training
        if self._hashes is not None:
            check_hash(path, self._hashes.get(path.name), _CURE)
        return state

    def __iter__(self) -> Iterator[State]:
        return (self[t] for t in range(len(self)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """How far each checkpoint is from the first and from the last, each ``(τ + 1,)``; running statistics count."""
        self.check()
        first, last = self[0], self[-1]
        pairs = [(_distance(state, first), _distance(state, last)) for state in self]
        gone, left = np.array(pairs).T
        return gone, left

    def plot(self) -> Figure:
        """How far the training has gone from its start, and is from its end, at each checkpoint."""
        from ddm.plots import distances

        return distances(self)

    def _repr_html_(self) -> str:
        return html.paragraph(f"{self!r}.")

    def __repr__(self) -> str:
        steps = f"{self.steps[-1]:,} optimiser steps" if self.steps else "no steps"
        return f"Trajectory of {len(self):,} checkpoints over {steps}"

    def check(self) -> None:
        """Refuse a trajectory with fewer than two checkpoints."""
        if len(self) < 2:
            raise InputError("a trajectory needs at least two checkpoints: take a snapshot after each epoch.")


def _read(path: Path) -> State:
    return read_whole(path, _CURE)


def _distance(one: State, other: State) -> float:
    """Euclidean distance of two checkpoints over all that is not a counter."""
    parts = [(one[name] - other[name]).double().square().sum() for name in one if one[name].is_floating_point()]
    return math.sqrt(sum(float(part) for part in parts))
