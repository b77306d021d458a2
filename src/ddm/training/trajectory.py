"""The trajectory of a training: its checkpoints θ_0 … θ_τ, in memory or on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddm.compute.files import check_hash
from ddm.compute.tensors import read_intact, read_metadata, write_tensors
from ddm.errors import InputError
from ddm.networks.state import State
from ddm.plots import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PARAMETER_RATES = "reach.safetensors"
"""The name of the file with ``Trajectory.parameter_rates``."""

_REMEDY = "restore it or make the run again"


class Trajectory:
    """The checkpoints of one training, in order.

    With a ``directory`` each checkpoint is a safetensors file there. ``append`` writes it, and each use
    reads it again, so a trajectory may be larger than memory. Without a directory all checkpoints stay in memory.

    steps:            number of optimizer steps before each checkpoint
    cumulative_rates: effective learning rates (``ddm.training.optimizers``) summed over those steps; NaN if unknown
    parameter_rates:  this sum for each parameter by name, at the last checkpoint; None if all parameters have the same
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory).absolute() if directory is not None else None
        self.steps: list[int] = []
        self.cumulative_rates: list[float] = []
        self.parameter_rates: State | None = None
        self._states: list[State] = []
        self._hashes: Mapping[str, str] | None = None

    @classmethod
    def open(cls, directory: Path | str) -> Trajectory:
        """Open the trajectory in a directory."""
        trajectory = cls(directory)
        while (path := trajectory._path(len(trajectory))).exists():
            metadata = read_metadata(path)
            try:
                step, rate = int(metadata["step"]), metadata["length"]
                rate = math.nan if rate is None else float(rate)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise InputError(f"'{path}' is not a checkpoint: {_REMEDY}.") from None
            if step < (trajectory.steps or [0])[-1] or math.isinf(rate):
                raise InputError(f"'{path}' does not continue the checkpoint before it: restore it.")
            trajectory.steps.append(step)
            trajectory.cumulative_rates.append(rate)
        if trajectory._rates_path.exists():
            trajectory.parameter_rates = _read(trajectory._rates_path)
        return trajectory

    def expect_hashes(self, hashes: Mapping[str, str]) -> None:
        """Set the expected hash of each checkpoint's file (file name → hash). Reading a checkpoint checks it."""
        self._hashes = hashes

    def _path(self, t: int) -> Path:
        assert self.directory is not None
        return self.directory / f"{t:05d}.safetensors"

    @property
    def _rates_path(self) -> Path:
        assert self.directory is not None
        return self.directory / PARAMETER_RATES

    def append(
        self,
        state: Mapping[str, Tensor],
        step: int,
        cumulative_rate: float,
        parameter_rates: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a checkpoint, with its entries in ``steps``, ``cumulative_rates`` and ``parameter_rates``."""
        if self.directory is None:
            self._states.append(_copy(state))
        else:
            if not self.steps:  # delete checkpoints that another training left here
                Trajectory.open(self.directory).truncate(0)
            if parameter_rates is not None:
                write_tensors(self._rates_path, parameter_rates)
            known = None if math.isnan(cumulative_rate) else cumulative_rate
            write_tensors(self._path(len(self)), state, {"step": step, "length": known})
        self.steps.append(step)
        self.cumulative_rates.append(cumulative_rate)
        self.parameter_rates = None if parameter_rates is None else _copy(parameter_rates)

    def truncate(self, count: int) -> None:
        """Delete all but the first ``count`` checkpoints."""
        for t in reversed(range(count, len(self))):  # the last one first, so that an interruption leaves no gap
            if self.directory is not None:
                self._path(t).unlink()
        if count == 0 and self.directory is not None and self._rates_path.exists():
            self._rates_path.unlink()
        del self.steps[count:], self.cumulative_rates[count:], self._states[count:]

    def save(self, directory: Path | str) -> Trajectory:
        """Copy the trajectory to a directory, and return the copy there."""
        copy = Trajectory(directory)
        for state, step, rate in zip(self, self.steps, self.cumulative_rates, strict=True):
            copy.append(state, step, rate, self.parameter_rates if step == self.steps[-1] else None)
        return copy

    def select(self, checkpoints: Sequence[int]) -> Trajectory:
        """A trajectory in memory that has only the checkpoints with these numbers."""
        chosen = Trajectory()
        chosen._states = [self[t] for t in checkpoints]
        chosen.steps = [self.steps[t] for t in checkpoints]
        chosen.cumulative_rates = [self.cumulative_rates[t] for t in checkpoints]
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
        state = _read(path)  # before the hash check, so that a damaged file is reported as damaged
        if self._hashes is not None:
            check_hash(path, self._hashes.get(path.name), _REMEDY)
        return state

    def __iter__(self) -> Iterator[State]:
        return (self[t] for t in range(len(self)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances of each checkpoint from the first and to the last, each ``(τ + 1,)``, with running statistics."""
        self.check()
        first, last = self[0], self[-1]
        pairs = [(_distance(state, first), _distance(state, last)) for state in self]
        from_first, to_last = np.array(pairs).T
        return from_first, to_last

    def plot(self) -> Figure:
        """Plot the distance of each checkpoint from the start and to the end of the training."""
        from ddm.plots import distances

        return distances(self)

    def _repr_html_(self) -> str:
        return html.paragraph(f"{self!r}.")

    def __repr__(self) -> str:
        steps = f"{self.steps[-1]:,} optimizer steps" if self.steps else "no steps"
        return f"Trajectory of {len(self):,} checkpoints over {steps}"

    def check(self) -> None:
        """Refuse a trajectory with fewer than two checkpoints."""
        if len(self) < 2:
            raise InputError("a trajectory needs at least two checkpoints: take a snapshot after each epoch.")


def _copy(state: Mapping[str, Tensor]) -> State:
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def _read(path: Path) -> State:
    return read_intact(path, _REMEDY)


def _distance(one: State, other: State) -> float:
    """Euclidean distance between two checkpoints. Integer tensors such as BatchNorm's counters are left out."""
    parts = [(one[name] - other[name]).double().square().sum() for name in one if one[name].is_floating_point()]
    return math.sqrt(sum(float(part) for part in parts))
