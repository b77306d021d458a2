"""The target ℳ: a network, the recipe 𝒜 that trained it, and its trajectory θ_0 … θ_τ.

``train`` makes one from a recipe, bit for bit the same for the same seed on one machine. ``Recorder`` makes
one from a training loop of the user's own.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from ddm import augment as augmentation
from ddm.datasets.samples import Samples
from ddm.errors import InputError
from ddm.fields import check_types
from ddm.files import read_metadata, read_tensors, write_tensors
from ddm.parameters import FlatNetwork, State, load_state, state_of
from ddm.progress import Advance, bar
from ddm.trajectory import Trajectory

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits (b, L), labels (b,) or soft targets (b, L)) → scalar``, the mean over the batch."""

SCHEDULES = ("constant", "cosine", "step")


@dataclass(frozen=True)
class Recipe:
    """How the target is trained by stochastic gradient descent: with θ_0, enough to train it again exactly.

    epochs:           passes over the training set
    lr:               learning rate η_a at the start
    batch_size:       samples a step
    momentum:         of SGD; 0 is plain gradient descent
    weight_decay:     of SGD
    schedule:         constant, cosine (to zero), or step (a tenth after half, a hundredth after three quarters)
    augment:          none, flip, shift or flip-shift
    checkpoint_every: optimiser steps between checkpoints; None is one an epoch
    seed:             of batch order, augmentation and dropout (a network's own seed draws θ_0)
    """

    epochs: int = 30
    lr: float = 0.1
    batch_size: int = 64
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    augment: str = "none"
    checkpoint_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        every = 1 if self.checkpoint_every is None else self.checkpoint_every
        if self.epochs < 1 or self.batch_size < 1 or every < 1:
            raise InputError("epochs, batch size and steps between checkpoints must each be at least 1.")
        if not (self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise InputError("a recipe needs lr > 0, 0 ≤ momentum < 1 and weight decay ≥ 0.")
        if self.schedule not in SCHEDULES:
            raise InputError(f"there is no schedule '{self.schedule}': use one of {', '.join(SCHEDULES)}.")
        augmentation.check(self.augment)

    def lr_at(self, step: int, total: int) -> float:
        """Learning rate of optimiser step ``step`` of ``total``."""
        progress = step / total
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        if self.schedule == "step":
            return self.lr * (0.01 if progress >= 0.75 else 0.1 if progress >= 0.5 else 1.0)
        return self.lr


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

    def state(self, t: int) -> State:
        """Checkpoint ``t`` on the target's device."""
        return {name: tensor.to(self.device) for name, tensor in self.trajectory[t].items()}

    def at(self, t: int) -> tuple[Tensor, State]:
        """θ_t ``(P,)`` and the fixed tensors of checkpoint ``t``."""
        state = self.state(t)
        return self.flat.vector(state), self.flat.fixed(state)

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
        return hashlib.sha256(f"{architecture(self.network)} {_hash(self.trajectory[-1])}".encode()).hexdigest()


def accuracy_of(network: nn.Module, samples: Samples, batch_size: int = 512) -> float:
    """Fraction of samples that a network in evaluation mode classifies correctly."""
    device = next(network.parameters()).device
    right = 0
    with torch.no_grad():
        for rows in torch.arange(len(samples)).split(batch_size):
            x, y = samples.batch(rows)
            right += int((network(x.to(device, _dtype(network))).argmax(1).cpu() == y).sum())
    return right / len(samples)


def architecture(network: nn.Module) -> str:
    """A network's kind and the shapes of its parameters and buffers, as text that can be compared."""
    shapes = [f"{name}{list(tensor.shape)}" for name, tensor in state_of(network).items()]
    return f"{type(network).__name__}: {' '.join(shapes)}"


def train(
    network: nn.Module,
    samples: Samples | Dataset[Any],
    recipe: Recipe | None = None,
    *,
    loss: Loss = F.cross_entropy,
    without: np.ndarray | None = None,
    directory: Path | str | None = None,
    device: str | torch.device = "cpu",
) -> Target:
    """Train ``network`` from the weights it has (θ_0) and keep its trajectory.

    ``without`` holds positions of samples to leave out. The rest meet the network in the same order and the same
    steps as with all of them, so that two trainings differ by the samples left out and by nothing else (but for
    dropout, whose masks depend on the size of a batch).
    With a ``directory`` checkpoints go to disk as they are made, and a training that was killed goes on from
    its last whole epoch, to the same result. The network given is not changed.
    """
    recipe = recipe or Recipe()
    samples = Samples.of(samples)
    training = _Training(network, samples, recipe, loss, without, directory, device_of(device))
    with bar("training the target", training.total - training.step) as advance:
        while training.epoch < recipe.epochs:
            training.run_epoch(advance)
    return Target(training.network, training.trajectory, loss, recipe, device, samples.fingerprint())


def device_of(name: str | torch.device) -> torch.device:
    """A device that can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"the device '{name}' cannot be used here: use cpu.") from None
    return device


class _Training:
    """One training in progress: the state an epoch starts from and ends with."""

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        recipe: Recipe,
        loss: Loss,
        without: np.ndarray | None,
        directory: Path | str | None,
        device: torch.device,
    ) -> None:
        self.network = copy.deepcopy(network).to(device)
        _check_fit(self.network, samples, device)
        _check_augment(recipe.augment, samples)
        self.initial = _hash(state_of(network))
        self.samples, self.recipe, self.loss, self.device = samples, recipe, loss, device
        self.kept = _others(len(samples), without)
        self.optimizer = torch.optim.SGD(
            [p for p in self.network.parameters() if p.requires_grad],
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.total = recipe.epochs * math.ceil(len(samples) / recipe.batch_size)
        self.epoch, self.step, self.length = 0, 0, 0.0
        self.trajectory = Trajectory(directory)
        self.progress_file = Path(directory) / "progress.safetensors" if directory is not None else None
        if self.progress_file is not None and self.progress_file.exists():
            self._resume(self.progress_file)
        else:
            self._checkpoint()

    def run_epoch(self, advance: Advance) -> None:
        """One pass over the data, in an order that depends on the seed and the epoch alone."""
        seed = _epoch_seed(self.recipe.seed, self.epoch)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.samples), generator=generator)
        self.network.train()
        with torch.random.fork_rng():  # dropout draws from the global generator
            torch.manual_seed(seed)
            for rows in order.split(self.recipe.batch_size):
                self._descend(rows, generator)
                advance(1)
        self.epoch += 1
        if self.recipe.checkpoint_every is None or (self.epoch == self.recipe.epochs and not self._just_kept()):
            self._checkpoint()
        if self.progress_file is not None:
            self._save_progress(self.progress_file)

    def _descend(self, rows: Tensor, generator: torch.Generator) -> None:
        x, y = self.samples.batch(rows)
        x = augmentation.augment(x, self.recipe.augment, generator)
        kept = self.kept[rows]  # after augmenting, so that each sample is augmented as it would be with all
        lr = self.recipe.lr_at(self.step, self.total)
        if kept.any():
            self._update(x[kept].to(self.device), y[kept].to(self.device), lr)
        self.step += 1
        self.length += lr / (1 - self.recipe.momentum)  # momentum repeats a step this often
        if self.recipe.checkpoint_every is not None and self.step % self.recipe.checkpoint_every == 0:
            self._checkpoint()

    def _update(self, x: Tensor, y: Tensor, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        try:
            value = self.loss(self.network(x.to(_dtype(self.network))), y)
        except ValueError as error:
            raise InputError(
                f"a batch of {len(x)} cannot be trained on: choose another batch size ({' '.join(str(error).split())})."
            ) from None
        if not torch.isfinite(value):
            raise InputError(f"training diverged in epoch {self.epoch + 1} (loss {value.item()}): lower the lr.")
        value.backward()
        self.optimizer.step()

    def _checkpoint(self) -> None:
        state = state_of(self.network)
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise InputError(f"training diverged in epoch {self.epoch} (parameters are not finite): lower the lr.")
        self.trajectory.append(state, self.step, self.length)

    def _just_kept(self) -> bool:
        return self.trajectory.steps[-1] == self.step

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """What a training that goes on must have been started with."""
        kept = hashlib.sha256(self.kept.numpy().tobytes()).hexdigest()
        return {
            "recipe": asdict(self.recipe),
            "data": f"{self.samples.fingerprint()} {kept}",
            "network": f"{architecture(self.network)} {self.initial}",
        }

    def _save_progress(self, path: Path) -> None:
        momenta = [self.optimizer.state[p].get("momentum_buffer") for p in self.optimizer.param_groups[0]["params"]]
        tensors = state_of(self.network) | {f"momentum.{i}": m for i, m in enumerate(momenta) if m is not None}
        counters = {
            "epoch": self.epoch,
            "step": self.step,
            "length": self.length,
            "kept": len(self.trajectory),
        }
        write_tensors(path, tensors, self._identity | counters)

    def _resume(self, path: Path) -> None:
        metadata, tensors = read_metadata(path), read_tensors(path)
        for what, value in self._identity.items():
            if metadata.get(what) != value:
                raise InputError(f"'{path.parent}' holds a training with another {what}: choose another folder.")
        for index, parameter in enumerate(self.optimizer.param_groups[0]["params"]):
            if (momentum := tensors.pop(f"momentum.{index}", None)) is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.to(self.device)
        load_state(self.network, tensors)
        self.epoch, self.step, self.length = metadata["epoch"], metadata["step"], metadata["length"]
        self.trajectory = Trajectory.open(path.parent)
        if len(self.trajectory) < metadata["kept"]:
            raise InputError(f"'{path.parent}' has lost checkpoints: restore them or choose another folder.")
        self.trajectory.truncate(metadata["kept"])


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
        self.trajectory.append(
            state_of(self.network), self.trajectory.steps[-1] + steps, self.trajectory.lengths[-1] + length
        )

    def target(self, loss: Loss = F.cross_entropy, device: str | torch.device = "cpu") -> Target:
        """The target that was recorded."""
        return Target(self.network, self.trajectory, loss, device=device)


def loss_name(loss: Loss) -> str:
    """What identifies a loss in files, which hold no code: torch's cross-entropy, or one of the user's own."""
    return "cross_entropy" if loss is F.cross_entropy else f"own {getattr(loss, '__name__', type(loss).__name__)}"


def _hash(state: State) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _others(count: int, without: np.ndarray | None) -> Tensor:
    """Which of ``count`` samples stay ``(count,)``, given positions of those that do not."""
    rows = np.asarray([] if without is None else without)
    kept = np.ones(count, dtype=bool)
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count):
        raise InputError(f"there are {count} samples: those to leave out are given by position, from 0.")
    kept[rows.astype(np.int64)] = False
    if not kept.any():
        raise InputError(f"all {count} samples are left out: nothing is left to train on.")
    return torch.as_tensor(kept)


def _check_augment(kind: str, samples: Samples) -> None:
    if kind != "none" and len(samples.shape) != 3:
        raise InputError(f"only images can be augmented, not inputs of shape {samples.shape}: use augment='none'.")


def _dtype(network: nn.Module) -> torch.dtype:
    return next(network.parameters()).dtype


def _epoch_seed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _check_fit(network: nn.Module, samples: Samples, device: torch.device) -> None:
    """Refuse a network that cannot read the samples or has too few outputs for their classes."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("the network has no parameters to train.")
    x, _ = samples.batch([0])
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(x.to(device, _dtype(network)))
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the network cannot read inputs of shape {samples.shape}: build it for this data ({error})."
        ) from None
    if outputs.dim() != 2 or outputs.shape[1] < len(samples.classes):
        raise InputError(
            f"the network gives outputs of shape {tuple(outputs.shape[1:])} but the data has "
            f"{len(samples.classes)} classes: build it with classes={len(samples.classes)}."
        )
