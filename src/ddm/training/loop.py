"""Train a target by a recipe: resumable, and bit for bit reproducible on one machine.

The random numbers of an epoch depend only on the seed and the number of the epoch. So a killed training resumes from
its last complete epoch and ends with the same result.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
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
from ddm.data.inputs import Inputs, X
from ddm.data.losses import Loss
from ddm.data.samples import Samples, check_two_classes
from ddm.data.tasks import Task, task_of
from ddm.errors import InputError
from ddm.networks.state import State, architecture, check_state, hash_of_state, load_state, shapes_of, state_of
from ddm.training import augmentation
from ddm.training.optimizer_state import load_optimizer, optimizer_state
from ddm.training.optimizers import OPTIMIZERS
from ddm.training.recipe import Recipe
from ddm.training.recorder import Recorder
from ddm.training.target import Target, device_of, dtype_of


def train(
    network: nn.Module | str,
    samples: Samples | Dataset[Any],
    recipe: Recipe | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    loss: Loss = F.cross_entropy,
    task: Task | str | None = None,
    without: np.ndarray | None = None,
    weights: Sequence[float] | np.ndarray | Tensor | None = None,
    directory: Path | str | None = None,
    device: str | torch.device = "cpu",
) -> Target:
    """Train a copy of ``network`` from its present weights (θ_0), and record its trajectory.

    network:   a module, or the name of a built-in network such as ``"convnet"``, built for the shape and the classes
               of the samples with ``options`` such as ``{"width": 16}``
    recipe:    how to train; without a learning rate, the network's default is used
    loss:      ``loss(logits, labels)`` of a batch: one of torch's losses, or another mean or sum over the samples
    task:      what the outputs mean, if the loss does not say it: a ``Task``, or binary, multilabel, regression, …
    without:   positions of samples to leave out. The others keep the order, batch and augmentation that they have in
               the full training set. Only dropout differs, because its masks depend on the batch size.
    weights:   how much each sample counts ``(n,)``, at least 0: a batch's loss is Σ w_i ℓ_i / Σ w_i, or Σ w_i ℓ_i for a
               loss that is a sum. A weight of 0 leaves the sample out, as ``without`` does.
    directory: where checkpoints are written during training. If it contains a training that was killed, that training
               resumes from its last complete epoch.
    """
    task = _resolve_task(task, loss)
    samples = Samples.from_dataset(samples, task=task)
    network = _resolve_network(network, samples, task, options)
    recipe = (recipe or Recipe()).with_lr(networks.learning_rate(network))
    each = _sample_weights(len(samples), without, weights)
    training = _Training(network, samples, recipe, task, each, directory, device_of(device))
    with bar("training the target", training.total - training.step) as advance:
        while training.epoch < recipe.epochs:
            training.run_epoch(advance)
    return training.target()


def _resolve_task(task: Task | str | None, loss: Loss) -> Task:
    """The task that the user names, with the loss of the training, or the one that the loss implies."""
    if isinstance(task, str):
        return Task(task, None if loss is F.cross_entropy else loss)
    return task_of(loss) if task is None else task


def _resolve_network(
    network: nn.Module | str, samples: Samples, task: Task, options: Mapping[str, Any] | None
) -> nn.Module:
    """The module itself, or a new built-in network of this name for these samples."""
    if isinstance(network, str):
        return build_network(network, samples, task, options)
    if options:
        raise InputError("options are only for a network given by its name: build your module with them instead.")
    return network


def build_network(name: str, samples: Samples, task: Task, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The built-in network of this name for these samples, with the options that they bring unless the user's differ.

    options: of the user
    """
    given, needed = dict(options or {}), samples.options.get("vocabulary")
    vocabulary = given.get("vocabulary", needed)
    if needed is not None and isinstance(vocabulary, int) and vocabulary < needed:
        raise InputError(
            f"the texts have {needed:,} token ids, more than vocabulary={vocabulary}: leave out the option."
        )
    brought = networks.accepted(name, samples.options)
    return networks.build(name, samples.shape, task.width(len(samples.classes)), **{**brought, **given})


class _Training:
    """A training in progress: its state between two epochs."""

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        recipe: Recipe,
        task: Task,
        weights: Tensor,
        directory: Path | str | None,
        device: torch.device,
    ) -> None:
        if recipe.amp:
            check_bfloat16(device)
        self.network = copy.deepcopy(network).to(device)
        _check_fit(self.network, samples, task, device)
        augmentation.check_shape(recipe.augment, samples.shape)
        self.initial = hash_of_state(state_of(network))
        self.samples, self.recipe, self.task, self.loss, self.device = samples, recipe, task, task.loss, device
        self.weights, self.included = weights, weights > 0
        self.trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimizer = OPTIMIZERS[recipe.optimizer].build(list(self.trained.values()), recipe)
        self.total = recipe.epochs * math.ceil(len(samples) / recipe.batch_size)
        check_upper_bounds(optimizer_steps=self.total)
        self.epoch, self.step, self.last_checkpoint = 0, 0, 0
        self.directory = directory
        self.progress_file = Path(directory) / "progress.safetensors" if directory is not None else None
        if self.progress_file is not None and self.progress_file.exists():
            self._resume(self.progress_file)
        else:
            self.recorder = self._record()

    def _record(self, resume: Mapping[str, Any] | None = None) -> Recorder:
        task = self.task if self.loss.is_torchs else None  # another loss may count its calls, and must be a mean
        return Recorder(self.network, self.optimizer, directory=self.directory, task=task, resume=resume)

    def target(self) -> Target:
        """The trained target."""
        self.recorder.close()
        # A datamodel gives each sample the weight 1, so it must not be fitted to a target with other weights.
        data = self.samples.fingerprint() if bool((self.weights == 1).all()) else self._identity["data"]
        return Target(self.network, self.recorder.trajectory, self.task, self.recipe, self.device, data)

    def run_epoch(self, advance: Advance) -> None:
        """Make one pass over the data, in an order that depends only on the seed and the epoch."""
        seed = _epoch_seed(self.recipe.seed, self.epoch)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.samples), generator=generator)
        self.network.train()
        with torch.random.fork_rng():  # dropout draws from the global generator
            torch.manual_seed(seed)
            parts = order.split(self.recipe.batch_size)
            for rows, (x, y) in zip(parts, self.samples.batches(parts), strict=True):
                self._descend(x, y, rows, generator)
                advance(1)
        self.epoch += 1
        if self.recipe.checkpoint_every is None or (
            self.epoch == self.recipe.epochs and self.last_checkpoint < self.step
        ):
            self._checkpoint()
        if self.progress_file is not None:
            self._save_progress(self.progress_file)

    def _descend(self, x: X, y: Tensor, rows: Tensor, generator: torch.Generator) -> None:
        """Train on the batch of the samples at ``rows``. Without included samples, nothing changes."""
        x = augmentation.augment(x, self.recipe.augment, generator)
        included = self.included[rows]  # selected last, so that augmentation does not depend on ``without``
        lr = self.recipe.lr_at(self.step, self.total)
        if included.any():
            weights = self.weights[rows][included].to(self.device)
            self._update(x[included].to(self.device), y[included].to(self.device), weights, lr)
        self.step += 1
        if self.recipe.checkpoint_every is not None and self.step % self.recipe.checkpoint_every == 0:
            self._checkpoint()

    def _update(self, x: X, y: Tensor, weights: Tensor, lr: float) -> None:
        """Update the parameters by the gradient of the loss of a batch, whose samples have weights ``(b,)``."""
        self.network.zero_grad()
        try:
            value = self.loss.weighted(self._outputs(x.to(dtype_of(self.network))), y, weights)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            reason = " ".join(str(error).split())
            raise InputError(f"a batch of {len(x)} does not work: choose another batch size ({reason}).") from None
        if not torch.isfinite(value):
            raise InputError(f"training diverged in epoch {self.epoch + 1} (loss {value.item()}): lower the lr.")
        value.backward()
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained.values(), self.recipe.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            raise InputError(f"training diverged in epoch {self.epoch + 1} (a step overflows): lower the lr.") from None

    def _outputs(self, x: X) -> Tensor:
        """Outputs ``(b, L)`` of a batch. Mixed precision computes them in bfloat16, then casts them back."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.amp):
            outputs = self.task.outputs(self.network, x)
        return outputs.to(dtype_of(self.network)) if self.recipe.amp else outputs

    def _checkpoint(self) -> None:
        if not all(tensor.isfinite().all() for tensor in state_of(self.network).values()):
            raise InputError(f"training diverged in epoch {self.epoch} (parameters are not finite): lower the lr.")
        self.recorder.snapshot()
        self.last_checkpoint = self.step

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """Recipe, data and network, which must be the same when a training resumes."""
        weighted = not torch.equal(self.weights, self.included.to(self.weights))
        included = hashlib.sha256((self.weights if weighted else self.included).numpy().tobytes()).hexdigest()
        return {
            "recipe": self.recipe.to_dict(),
            "data": f"{self.samples.fingerprint()} {included}",
            "network": f"{architecture(self.network)} {self.initial}",
        }

    def _save_progress(self, path: Path) -> None:
        recorded = self.recorder.state_dict()
        counters = {"epoch": self.epoch, "step": self.step, "checkpoint": self.last_checkpoint}
        tensors = {f"recorder.{name}": tensor for name, tensor in recorded["tensors"].items()}
        tensors |= state_of(self.network) | optimizer_state(self.optimizer, self.trained)
        write_tensors(path, tensors, self._identity | counters | {"recorder": recorded["facts"]})

    def _resume(self, path: Path) -> None:
        tensors, metadata = read_intact(path, "delete it, and training starts again"), read_metadata(path)
        for part, value in self._identity.items():
            if metadata.get(part) != value:
                raise InputError(f"'{path.parent}' contains a training with another {part}: choose another folder.")
        try:
            self._load_progress(metadata, tensors)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            reason = " ".join(str(error).split())
            raise InputError(
                f"training cannot resume from '{path}' ({reason}): delete it, and training starts again."
            ) from None

    def _load_progress(self, metadata: dict[str, Any], tensors: State) -> None:
        """Load the state that ``_save_progress`` wrote. Errors name the value that does not fit."""
        self.epoch, self.step, self.last_checkpoint = (metadata[name] for name in ("epoch", "step", "checkpoint"))
        if any(type(value) is not int or value < 0 for value in (self.epoch, self.step, self.last_checkpoint)):
            raise ValueError("its counters are invalid")
        if self.step > self.total:
            raise ValueError("its counters are invalid")
        prefix = "recorder."
        recorded = {n.removeprefix(prefix): tensors.pop(n) for n in list(tensors) if n.startswith(prefix)}
        load_optimizer(self.optimizer, self.trained, OPTIMIZERS[self.recipe.optimizer].stored, tensors)
        check_state(tensors, shapes_of(self.network), "it")
        load_state(self.network, tensors)
        self.recorder = self._record({"facts": metadata["recorder"], "tensors": recorded})


def _sample_weights(
    count: int, without: np.ndarray | None, weights: Sequence[float] | np.ndarray | Tensor | None
) -> Tensor:
    """The weight of each sample ``(count,)``, 0 at the positions in ``without``."""
    try:
        given = torch.ones(count) if weights is None else torch.as_tensor(weights).to("cpu", torch.float32).clone()
        valid = given.shape == (count,) and bool((given.isfinite() & (given >= 0)).all())
    except (TypeError, ValueError, RuntimeError):  # not numbers
        valid = False
    if not valid:
        raise InputError(f"weights must be one finite number of at least 0 for each of the {count} samples.")
    rows = np.asarray([] if without is None else without)
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= count):
        raise InputError(f"there are {count} samples: give positions to leave out from 0 to {count - 1}.")
    given[torch.as_tensor(rows.astype(np.int64))] = 0
    if not given.any():
        raise InputError(f"all {count} samples are left out: keep at least one to train on.")
    return given


def _epoch_seed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _check_ids(network: nn.Module, samples: Samples) -> None:
    """Refuse token ids that the built-in network for texts does not know."""
    if not isinstance(network, networks.TextTransformer) or not isinstance(samples.raw, Inputs):
        return
    ids = next((leaf for name, leaf in samples.raw.named_leaves().items() if name in ("", "0", "input_ids")), None)
    known = network.tokens.num_embeddings
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise InputError(
            f"the samples have token ids from {int(ids.min())} to {int(ids.max())}, but the network has the vocabulary "
            f"0 to {known - 1}: build it with vocabulary={max(int(ids.max()) + 1, 1)} or more."
        )


def _check_fit(network: nn.Module, samples: Samples, task: Task, device: torch.device) -> None:
    """Refuse a network that does not accept the samples, or whose outputs do not fit their labels."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("the network has no parameters to train: call requires_grad_(True) on those that it should.")
    check_two_classes(samples)
    _check_ids(network, samples)
    x, y = samples.batch(np.arange(min(2, len(samples))))
    network.eval()
    try:
        with torch.no_grad():
            outputs = task.outputs(network, x.to(device, dtype_of(network)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the network does not accept inputs of shape {samples.shape}: build it for this data ({error})."
        ) from None
    if not task.has_classes:
        if (why := task.check_labels(samples.labels, outputs.shape[1])) is not None:
            raise InputError(f"the labels do not fit the network: {why}.")
        measured = task.loss.is_torchs and not task.by_position  # by the recorder
        if not measured and len(y) > 1 and task.loss.reduction(outputs, y.to(device)) == "sum":
            raise InputError("the loss adds up the losses of a batch: give one that is their mean.")
    elif outputs.shape[1] < len(samples.classes):
        raise InputError(
            f"the network returns outputs of shape {tuple(outputs.shape[1:])} but the data has "
            f"{len(samples.classes)} classes: build it with classes={len(samples.classes)}."
        )
