"""The target ℳ: the network under study, with its trajectory θ_0 … θ_τ.

``ddm.train`` makes one from a recipe; ``Recorder`` makes one from a training loop of the user's own.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.compute.backends import Place
from ddm.compute.progress import bar
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.networks.flat import FlatNetwork, State, check_state, load_state, shapes_of, state_of
from ddm.training.recipe import Recipe
from ddm.training.trajectory import Trajectory

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits (b, L), labels (b,) or soft targets (b, L)) → scalar``, the mean over the batch."""


class Target:
    """The network under study.

    flat:       the network as a function of θ, in evaluation mode
    trajectory: θ_0 … θ_τ
    loss:       what it was trained with
    recipe:     how, if ``train`` trained it
    data:       fingerprint of what it was trained on, if ``train`` trained it
    """

    def __init__(
        self,
        network: nn.Module,
        trajectory: Trajectory,
        loss: Loss = F.cross_entropy,
        recipe: Recipe | None = None,
        device: str | torch.device = "cpu",
        data: str | None = None,
    ) -> None:
        trajectory.check()
        self.device = device_of(device)
        self.data = data
        self.flat = FlatNetwork(network)
        self.flat.network.to(self.device)
        self.shapes = shapes_of(self.flat.network)
        self.trajectory = trajectory
        self.loss = loss
        self.recipe = recipe
        final = self.state(-1)
        load_state(self.flat.network, final)
        self.theta = self.flat.vector(final)
        self.fixed = self.flat.fixed(final)

    @property
    def network(self) -> nn.Module:
        """The trained network, θ_τ, in evaluation mode. Copy it before you change it."""
        return self.flat.network

    def __repr__(self) -> str:
        return (
            f"Target: {type(self.network).__name__} with {self.flat.size:,} parameters and {len(self.trajectory):,} "
            f"checkpoints over {self.trajectory.steps[-1]:,} optimiser steps"
        )

    def state(self, t: int) -> State:
        """Checkpoint ``t`` on the target's device."""
        state = self.trajectory[t]
        check_state(state, self.shapes, f"checkpoint {t % len(self.trajectory)}")
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def at(self, t: int) -> tuple[Tensor, State]:
        """θ_t ``(P,)`` and the fixed tensors of checkpoint ``t``."""
        state = self.state(t)
        return self.flat.vector(state), self.flat.fixed(state)

    def at_hand(self, checkpoints: Sequence[int], place: Place) -> Target:
        """Itself where work in ``place`` can read the trajectory's files, else with some checkpoints in memory."""
        if place.kind == "serial" or (self.trajectory.directory is not None and not place.remote):
            return self
        other = copy.copy(self)
        other.trajectory = self.trajectory.some(checkpoints)
        return other

    def outputs(self, x: Tensor, batch_size: int = 512) -> Tensor:
        """Logits ``(n, L)`` of the trained network for inputs ``(n, ...)``."""
        with torch.no_grad():
            parts = [self.flat(self.theta, self.fixed, part.to(self.device)) for part in x.split(batch_size)]
        return torch.cat(parts)

    def accuracy(self, samples: Samples) -> float:
        """Fraction of samples the trained network classifies correctly."""
        return accuracy_of(self.network, samples)

    def fingerprint(self) -> str:
        """Hash of the architecture and of θ_τ with its buffers: another network or another training differs."""
        return fingerprint_of(architecture(self.network), self.trajectory[-1])

    def origin(self, data: str) -> dict[str, str]:
        """What is made for this target and the training set of this fingerprint, as text that can be compared."""
        return {"network": architecture(self.network), "target": self.fingerprint(), "data": data}


class Recorder:
    """Keeps the trajectory of a training loop of the user's own.

    ``Recorder(model)`` keeps θ_0; call ``snapshot()`` after each epoch and ``target()`` at the end. ``length`` is the
    sum of the learning rates of the steps since the last snapshot; without it, it is estimated from the trajectory.
    """

    def __init__(self, network: nn.Module, directory: Path | str | None = None) -> None:
        self.network = network
        self.trajectory = Trajectory(directory)
        self.trajectory.append(state_of(network), 0, 0.0)

    def snapshot(self, steps: int = 1, length: float = math.nan) -> None:
        """Keep the parameters as they are now."""
        state = state_of(self.network)
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise InputError(f"snapshot {len(self.trajectory)}: the parameters are not finite: lower the lr.")
        self.trajectory.append(state, self.trajectory.steps[-1] + steps, self.trajectory.lengths[-1] + length)

    def target(self, loss: Loss = F.cross_entropy, device: str | torch.device = "cpu") -> Target:
        """The target that was recorded."""
        return Target(self.network, self.trajectory, loss, device=device)


def accuracy_of(network: nn.Module, samples: Samples, batch_size: int = 512) -> float:
    """Fraction of samples that a network in evaluation mode classifies correctly."""
    if not len(samples):
        raise InputError("there are no samples to measure an accuracy on: give at least one.")
    device = next(network.parameters()).device
    right = 0
    parts = torch.arange(len(samples)).split(batch_size)
    with torch.no_grad(), bar("measuring accuracy", len(parts)) as advance:
        for rows in parts:
            x, y = samples.batch(rows)
            advance(1)
            right += int((network(x.to(device, dtype_of(network))).argmax(1).cpu() == y).sum())
    return right / len(samples)


def architecture(network: nn.Module) -> str:
    """A network's kind and the shapes of its parameters and buffers, as text that can be compared."""
    shapes = [f"{name}{list(tensor.shape)}" for name, tensor in state_of(network).items()]
    return f"{type(network).__name__}: {' '.join(shapes)}"


def fingerprint_of(network: str, state: State) -> str:
    """Hash of an architecture and of what it was trained to."""
    return hashlib.sha256(f"{network} {hash_of_state(state)}".encode()).hexdigest()


def loss_name(loss: Loss) -> str:
    """What identifies a loss in files, which hold no code: torch's cross-entropy, or one of the user's own."""
    return "cross_entropy" if loss is F.cross_entropy else f"own {getattr(loss, '__name__', type(loss).__name__)}"


def device_of(name: str | torch.device) -> torch.device:
    """A device that can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"the device '{name}' cannot be used here: use cpu.") from None
    return device


def hash_of_state(state: State) -> str:
    """Hash of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def dtype_of(network: nn.Module) -> torch.dtype:
    """The type of a network's parameters."""
    return next(network.parameters()).dtype
