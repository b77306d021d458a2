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
from ddm.training.steps import Steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OLD_RATES = "reach.safetensors"
"""A file that older versions wrote beside the checkpoints of Adam. It is not used any more."""

_MOMENT = "moment:"
"""Prefix of the second moments in a checkpoint's file; names of parameters have no colon."""

_REMEDY = "restore it or make the run again"


class Trajectory:
    """The checkpoints of one training, in order.

    With a ``directory`` each checkpoint is a safetensors file there. ``append`` writes it, and each use
    reads it again, so a trajectory may be larger than memory. Without a directory all checkpoints stay in memory.

    steps:            number of optimizer steps before each checkpoint
    cumulative_rates: learning rates summed over those steps, with momentum; NaN if unknown
    seen:             the optimizer's steps since the checkpoint before; None for the first one, and if not recorded
    released:         True for a released run, which has θ_τ alone
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory).absolute() if directory is not None else None
        self.steps: list[int] = []
        self.cumulative_rates: list[float] = []
        self.seen: list[Steps | None] = []
        self.released = False
        self._states: list[State] = []
        self._moments: list[State | None] = []
        self._around: list[State | None] | None = None
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
                seen = None if metadata.get("seen") is None else Steps.from_json(metadata["seen"])
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                raise InputError(f"'{path}' is not a checkpoint: {_REMEDY}.") from None
            if step < (trajectory.steps or [0])[-1] or math.isinf(rate):
                raise InputError(f"'{path}' does not continue the checkpoint before it: restore it.")
            trajectory.steps.append(step)
            trajectory.cumulative_rates.append(rate)
            trajectory.seen.append(seen)
        if (trajectory._path(0).parent / OLD_RATES).exists():
            # These lengths are means of 1/√v̂, which rarely used parameters dominate.
            trajectory.cumulative_rates = [math.nan] * len(trajectory)
        return trajectory

    def expect_hashes(self, hashes: Mapping[str, str]) -> None:
        """Set the expected hash of each checkpoint's file (file name → hash). Reading a checkpoint checks it."""
        self._hashes = hashes

    def _path(self, t: int) -> Path:
        assert self.directory is not None
        return self.directory / f"{t:05d}.safetensors"

    def append(
        self,
        state: Mapping[str, Tensor],
        step: int,
        cumulative_rate: float = math.nan,
        seen: Steps | None = None,
        moments: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a checkpoint, with its entries in ``steps``, ``cumulative_rates`` and ``seen``.

        moments: mean second moment D² of each parameter over the steps since the checkpoint before, by name
        """
        if self.directory is None:
            self._states.append(_copy(state))
            self._moments.append(None if moments is None else _copy(moments))
        else:
            if not self.steps:  # delete checkpoints that another training left here
                Trajectory.open(self.directory).truncate(0)
                if (self.directory / OLD_RATES).exists():
                    (self.directory / OLD_RATES).unlink()
            self._write(len(self), state, step, cumulative_rate, seen, moments)
        self.steps.append(step)
        self.cumulative_rates.append(cumulative_rate)
        self.seen.append(seen)

    def _write(
        self,
        t: int,
        state: Mapping[str, Tensor],
        step: int,
        cumulative_rate: float,
        seen: Steps | None,
        moments: Mapping[str, Tensor] | None,
    ) -> None:
        known = None if math.isnan(cumulative_rate) else cumulative_rate
        tensors = {**state, **{f"{_MOMENT}{name}": moment for name, moment in (moments or {}).items()}}
        metadata = {"step": step, "length": known, **({} if seen is None else {"seen": seen.to_json()})}
        write_tensors(self._path(t), tensors, metadata)

    def truncate(self, count: int) -> None:
        """Delete all but the first ``count`` checkpoints."""
        for t in reversed(range(count, len(self))):  # the last one first, so that an interruption leaves no gap
            if self.directory is not None:
                self._path(t).unlink()
        del self.steps[count:], self.cumulative_rates[count:], self.seen[count:]
        del self._states[count:], self._moments[count:]

    def replace_last(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state of the last checkpoint."""
        facts = self.steps[-1], self.cumulative_rates[-1], self.seen[-1], self.moments(len(self) - 1)
        self.truncate(len(self) - 1)
        self.append(state, *facts)

    def thin(self) -> None:
        """Delete every second checkpoint, and merge the steps around it. The first and the last checkpoint stay."""
        kept = [*range(0, len(self) - 1, 2), len(self) - 1]
        thinned = Trajectory()
        for number, (before, t) in enumerate(zip([0, *kept], kept, strict=False)):
            checkpoint = self._merged(before, t)
            if self.directory is None:
                thinned.append(*checkpoint)
            else:  # checkpoints that are still to be read have higher numbers
                self._write(number, *checkpoint)
                thinned.append({}, *checkpoint[1:4])
        self._states[: len(kept)], self._moments[: len(kept)] = thinned._states, thinned._moments
        self.steps[: len(kept)], self.seen[: len(kept)] = thinned.steps, thinned.seen
        self.cumulative_rates[: len(kept)] = thinned.cumulative_rates
        self.truncate(len(kept))

    def _merged(self, before: int, t: int) -> tuple[State, int, float, Steps | None, State | None]:
        """Checkpoint ``t`` as ``append`` takes it, with the steps since checkpoint ``before``."""
        between = range(before + 1, t + 1) if t else range(1)
        seen = [self.seen[one] for one in between]
        known = [one for one in seen if one is not None]
        merged = sum(known[1:], known[0]) if len(known) == len(seen) else None
        return self[t], self.steps[t], self.cumulative_rates[t], merged, self._mean_moments(between)

    def rescale(self, factors: Sequence[float]) -> None:
        """Multiply the learning rates since each checkpoint's predecessor by a factor, one for each checkpoint."""
        rates = np.diff(self.cumulative_rates, prepend=0.0) * np.asarray(factors)
        self.cumulative_rates = np.cumsum(rates).tolist()
        self.seen = [one if one is None else one.rescaled(f) for one, f in zip(self.seen, factors, strict=True)]
        if self.directory is not None:
            for t in range(len(self)):
                self._write(t, self[t], self.steps[t], self.cumulative_rates[t], self.seen[t], self.moments(t))

    def save(self, directory: Path | str) -> Trajectory:
        """Copy the trajectory to a directory, and return the copy there."""
        copy = Trajectory(directory)
        for t, state in enumerate(self):
            copy.append(state, self.steps[t], self.cumulative_rates[t], self.seen[t], self.moments(t))
        return copy

    def select(self, checkpoints: Sequence[int]) -> Trajectory:
        """A trajectory in memory that has only the checkpoints with these numbers.

        It knows the moments around each checkpoint, but not the steps between them.
        """
        chosen = Trajectory()
        chosen._states = [self[t] for t in checkpoints]
        chosen._around = [self.moments_around(t) for t in checkpoints]
        chosen.steps = [self.steps[t] for t in checkpoints]
        chosen.cumulative_rates = [self.cumulative_rates[t] for t in checkpoints]
        chosen.seen = [None] * len(checkpoints)
        chosen._moments = [None] * len(checkpoints)
        return chosen

    def final(self) -> Trajectory:
        """A trajectory in memory that has θ_τ alone, without the optimizer's moments, for a run to release."""
        last = Trajectory()
        last.append(self[-1], self.steps[-1], self.cumulative_rates[-1])
        last.released = True
        return last

    def moments(self, t: int) -> State | None:
        """Mean D² of each parameter by name, over the steps since the checkpoint before; None if not recorded."""
        if self.directory is None:
            return self._moments[t]
        found = {name: tensor for name, tensor in self._read(t).items() if name.startswith(_MOMENT)}
        return {name.removeprefix(_MOMENT): tensor for name, tensor in found.items()} or None

    def moments_around(self, t: int) -> State | None:
        """Mean D² of each parameter by name, over the steps before and after checkpoint ``t``; None if not recorded."""
        if self._around is not None:
            return self._around[t]
        t %= len(self)
        return self._mean_moments([one for one in (t, t + 1) if 0 < one < len(self)])

    def _mean_moments(self, numbers: Sequence[int]) -> State | None:
        """Mean D² over the steps before each of these checkpoints, weighted by the number of steps."""
        sums: State = {}
        counts: dict[str, int] = {}
        for t in numbers:
            seen, moments = self.seen[t], self.moments(t) or {}
            for name, moment in moments.items():
                count = seen.tensors[name].count if seen is not None else 1
                sums[name] = sums[name] + count * moment if name in sums else count * moment
                counts[name] = counts.get(name, 0) + count
        return {name: total / max(counts[name], 1) for name, total in sums.items()} or None

    @property
    def trained(self) -> set[str] | None:
        """Names of the parameter tensors that a step changed; None if the steps were not recorded."""
        known = [steps for steps in self.seen[1:] if steps is not None]
        if self.released or len(known) < len(self) - 1:
            return None
        return {name for steps in known for name, one in steps.tensors.items() if one.count}

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, t: int) -> State:
        if not -len(self) <= t < len(self):
            raise IndexError(f"checkpoint {t} of {len(self)}")
        t %= len(self)
        if self.directory is None:
            return self._states[t]
        return {name: tensor for name, tensor in self._read(t).items() if not name.startswith(_MOMENT)}

    def _read(self, t: int) -> State:
        """All tensors of a checkpoint's file."""
        path = self._path(t)
        tensors = read_intact(path, _REMEDY)  # before the hash check, so that a damaged file is reported as damaged
        if self._hashes is not None:
            check_hash(path, self._hashes.get(path.name), _REMEDY)
        return tensors

    def __iter__(self) -> Iterator[State]:
        return (self[t] for t in range(len(self)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances of each checkpoint from the first and to the last, each ``(τ + 1,)``, with running statistics."""
        self.check()
        self.check_complete()
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
        """Refuse a trajectory with fewer than two checkpoints, unless it was released with θ_τ alone."""
        if len(self) < 2 and not (self.released and len(self)):
            raise InputError("a trajectory needs at least two checkpoints: take a snapshot after each epoch.")

    def check_complete(self) -> None:
        """Refuse the trajectory of a released run, which does not tell how the network was trained."""
        if self.released:
            raise InputError(
                "this run was released without the checkpoints of its training, which this needs: use the run that it "
                "was made from."
            )


def _copy(state: Mapping[str, Tensor]) -> State:
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def _distance(one: State, other: State) -> float:
    """Euclidean distance between two checkpoints. Integer tensors such as BatchNorm's counters are left out."""
    parts = [(one[name] - other[name]).double().square().sum() for name in one if one[name].is_floating_point()]
    return math.sqrt(sum(float(part) for part in parts))
