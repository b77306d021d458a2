"""Train a target by its recipe: bit for bit the same for the same seed on one machine, and resumable.

The random numbers of an epoch depend on the seed and the epoch alone. So a training that was killed resumes from its
last complete epoch and ends with the same result.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from ddm import networks
from ddm.compute.precision import check_bfloat16
from ddm.compute.progress import Advance, bar
from ddm.compute.tensors import read_intact, read_metadata, write_tensors
from ddm.compute.validation import check_upper_bounds
from ddm.data.samples import Samples, check_two_classes
from ddm.errors import InputError
from ddm.networks.state import State, architecture, check_state, hash_of_state, load_state, shapes_of, state_of
from ddm.training import augmentation
from ddm.training.optimizers import OPTIMIZERS
from ddm.training.recipe import Recipe
from ddm.training.target import Loss, Target, device_of, dtype_of
from ddm.training.trajectory import Trajectory


def train(
    network: nn.Module | str,
    samples: Samples | Dataset[Any],
    recipe: Recipe | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    loss: Loss = F.cross_entropy,
    without: np.ndarray | None = None,
    directory: Path | str | None = None,
    device: str | torch.device = "cpu",
) -> Target:
    """Train a copy of ``network`` from its present weights (θ_0), and record its trajectory.

    network:   a module, or the name of a built-in network such as ``"convnet"``, built for the shape and the classes
               of the samples with ``options`` such as ``{"width": 16}``
    recipe:    how to train; without a learning rate, the network's default is used
    loss:      ``loss(logits, labels)``, the mean over a batch
    without:   positions of samples to leave out. All others come in the same order, batch and augmentation as with
               the complete training set. Only dropout differs, because its masks depend on the size of a batch.
    directory: where checkpoints are written during training. A training that was killed resumes from its last
               complete epoch there.
    """
    samples = Samples.from_dataset(samples)
    network = _resolve_network(network, samples, options)
    recipe = (recipe or Recipe()).with_lr(networks.learning_rate(network))
    training = _Training(network, samples, recipe, loss, without, directory, device_of(device))
    with bar("training the target", training.total - training.step) as advance:
        while training.epoch < recipe.epochs:
            training.run_epoch(advance)
    return Target(training.network, training.trajectory, loss, recipe, device, samples.fingerprint())


def _resolve_network(network: nn.Module | str, samples: Samples, options: Mapping[str, Any] | None) -> nn.Module:
    """The module itself, or a new built-in network of this name for these samples."""
    if isinstance(network, str):
        return networks.build(network, samples.shape, len(samples.classes), **(options or {}))
    if options:
        raise InputError("options are for a network that is given by its name: build yours with them instead.")
    return network


class _Training:
    """A training in progress: its state between two epochs."""

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
        if recipe.amp:
            check_bfloat16(device)
        self.network = copy.deepcopy(network).to(device)
        _check_fit(self.network, samples, device)
        augmentation.check_shape(recipe.augment, samples.shape)
        self.initial = hash_of_state(state_of(network))
        self.samples, self.recipe, self.loss, self.device = samples, recipe, loss, device
        self.kept = _mask_without(len(samples), without)
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimizer = OPTIMIZERS[recipe.optimizer](trained, recipe)
        self.total = recipe.epochs * math.ceil(len(samples) / recipe.batch_size)
        check_upper_bounds(optimizer_steps=self.total)
        self.epoch, self.step = 0, 0
        self.trajectory = Trajectory(directory)
        self.progress_file = Path(directory) / "progress.safetensors" if directory is not None else None
        if self.progress_file is not None and self.progress_file.exists():
            self._resume(self.progress_file)
        else:
            self._checkpoint()

    def run_epoch(self, advance: Advance) -> None:
        """Make one pass over the data, in an order that depends on the seed and the epoch alone."""
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
        if self.recipe.checkpoint_every is None or (
            self.epoch == self.recipe.epochs and self.trajectory.steps[-1] < self.step
        ):
            self._checkpoint()
        if self.progress_file is not None:
            self._save_progress(self.progress_file)

    def _descend(self, rows: Tensor, generator: torch.Generator) -> None:
        """Make the step of one batch, if it has samples to train on."""
        x, y = self.samples.batch(rows)
        x = augmentation.augment(x, self.recipe.augment, generator)
        kept = self.kept[rows]  # after augmenting, so that all others are augmented the same
        lr = self.recipe.lr_at(self.step, self.total)
        if kept.any():
            self._update(x[kept].to(self.device), y[kept].to(self.device), lr)
        self.step += 1
        if self.recipe.checkpoint_every is not None and self.step % self.recipe.checkpoint_every == 0:
            self._checkpoint()

    def _update(self, x: Tensor, y: Tensor, lr: float) -> None:
        """Update the parameters by the gradient of the mean loss of a batch."""
        self.network.zero_grad()
        try:
            value = self.loss(self._outputs(x.to(dtype_of(self.network))), y)
        except ValueError as error:
            raise InputError(
                f"a batch of {len(x)} cannot be trained on: choose another batch size ({' '.join(str(error).split())})."
            ) from None
        if not torch.isfinite(value):
            raise InputError(f"training diverged in epoch {self.epoch + 1} (loss {value.item()}): lower the lr.")
        value.backward()
        try:
            self.optimizer.step(lr)
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            raise InputError(f"training diverged in epoch {self.epoch + 1} (a step overflows): lower the lr.") from None

    def _outputs(self, x: Tensor) -> Tensor:
        """Logits ``(b, L)`` of a batch. Mixed precision computes them in bfloat16, then casts them back."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.amp):
            logits: Tensor = self.network(x)
        return logits.to(x.dtype) if self.recipe.amp else logits

    def _checkpoint(self) -> None:
        state = state_of(self.network)
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise InputError(f"training diverged in epoch {self.epoch} (parameters are not finite): lower the lr.")
        self.trajectory.append(state, self.step, self.optimizer.total_rate, self.optimizer.parameter_rates)

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """Recipe, data and network, which must be the same when a training resumes."""
        kept = hashlib.sha256(self.kept.numpy().tobytes()).hexdigest()
        return {
            "recipe": self.recipe.to_dict(),
            "data": f"{self.samples.fingerprint()} {kept}",
            "network": f"{architecture(self.network)} {self.initial}",
        }

    def _save_progress(self, path: Path) -> None:
        counters = {
            "epoch": self.epoch,
            "step": self.step,
            "length": self.optimizer.total_rate,
            "kept": len(self.trajectory),
        }
        write_tensors(path, state_of(self.network) | self.optimizer.state(), self._identity | counters)

    def _resume(self, path: Path) -> None:
        tensors, metadata = read_intact(path, "delete it, and training starts again"), read_metadata(path)
        for what, value in self._identity.items():
            if metadata.get(what) != value:
                raise InputError(f"'{path.parent}' holds a training with another {what}: choose another folder.")
        try:
            self._load_progress(metadata, tensors)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise InputError(
                f"'{path}' cannot be resumed from ({why}): delete it, and training starts again."
            ) from None
        self.trajectory = Trajectory.open(path.parent)
        if len(self.trajectory) < metadata["kept"]:
            raise InputError(f"'{path.parent}' has lost checkpoints: restore them or choose another folder.")
        self.trajectory.truncate(metadata["kept"])

    def _load_progress(self, metadata: dict[str, Any], tensors: State) -> None:
        """Load the state that ``_save_progress`` wrote; errors say what does not fit."""
        self.optimizer.load(tensors)
        check_state(tensors, shapes_of(self.network), "it")
        load_state(self.network, tensors)
        self.epoch, self.step, self.optimizer.total_rate = metadata["epoch"], metadata["step"], metadata["length"]
        counted = [type(metadata[name]) is int and metadata[name] >= 0 for name in ("epoch", "step", "kept")]
        if not all(counted) or type(metadata["length"]) is not float or self.step > self.total or not metadata["kept"]:
            raise ValueError("its counters are impossible")


def _mask_without(count: int, without: np.ndarray | None) -> Tensor:
    """Which of ``count`` samples to train on ``(count,)``, as booleans, given the positions to leave out."""
    rows = np.asarray([] if without is None else without)
    kept = np.ones(count, dtype=bool)
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count):
        raise InputError(f"there are {count} samples: give positions from 0 to {count - 1}.")
    kept[rows.astype(np.int64)] = False
    if not kept.any():
        raise InputError(f"all {count} samples are left out: nothing is left to train on.")
    return torch.as_tensor(kept)


def _epoch_seed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _check_fit(network: nn.Module, samples: Samples, device: torch.device) -> None:
    """Refuse a network that cannot read the samples or has too few outputs for their classes."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("the network has no parameters to train.")
    check_two_classes(samples)
    x, _ = samples.batch([0])
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(x.to(device, dtype_of(network)))
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the network cannot read inputs of shape {samples.shape}: build it for this data ({error})."
        ) from None
    if outputs.dim() != 2 or outputs.shape[1] < len(samples.classes):
        raise InputError(
            f"the network gives outputs of shape {tuple(outputs.shape[1:])} but the data has "
            f"{len(samples.classes)} classes: build it with classes={len(samples.classes)}."
        )
