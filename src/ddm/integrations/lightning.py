"""Record the training of a Lightning ``Trainer``, and train again without some samples.

def make():
    return Module(), Trainer(max_epochs=5), DataLoader(…)

callback = DatamodelCallback(make)
module, trainer, loader = make()
trainer.callbacks.append(callback)
trainer.fit(module, loader)
dm = DistilledDatamodel.fit(callback.target(), callback.samples())
dm.audit(test, by=callback.retrain)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ddm.data.losses import Loss
from ddm.data.reading import Collate
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.errors import InputError
from ddm.integrations.randomness import Randomness, kept, reseed, sampler_of
from ddm.networks.state import State, load_state
from ddm.training.leave_out import Remaining, check_loader
from ddm.training.recorder import Recorder
from ddm.training.target import Target

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

Make = Callable[[], tuple[Any, Any, Any]]
"""``make()`` returns a new module, a new Trainer, and a ``DataLoader`` or a ``LightningDataModule``."""


_NO_FORWARD = ("LightningModule.forward", nn.Module.forward.__qualname__)
"""What a module has whose class does not define ``forward``."""


class DatamodelCallback(Callback):  # type: ignore[misc]
    """Records the training of the Lightning ``Trainer`` that has it among its callbacks.

    make:      ``make() → (module, trainer, loader)`` makes all that a training needs, for ``retrain``
    network:   name of the submodule that returns the outputs; by default the module itself, by its ``forward``
    every:     optimizer steps between checkpoints; by default 16 to 32 checkpoints, evenly spaced over the training
    directory: where checkpoints are written; in memory by default
    """

    def __init__(
        self,
        make: Make | None = None,
        *,
        network: str = "",
        every: int | None = None,
        directory: Path | str | None = None,
    ) -> None:
        self._make, self._name = make, network
        self._options: dict[str, Any] = {"every": every or "auto", "directory": directory}
        self._recorder: Recorder | None = None
        self._random: Randomness | None = None
        self._loader: Any = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the recording, at θ_0: before the first batch is drawn."""
        if self._recorder is not None:
            self._recorder.close()
        network = _network(pl_module, self._name)
        _check(trainer, pl_module)
        self._recorder = Recorder(network, trainer.optimizers[0], **self._options)
        self._random = Randomness.now()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the loader."""
        self._loader = trainer.train_dataloader
        check_loader(self._loader)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        assert self._recorder is not None
        self._recorder.finish()
        self._recorder.close()

    @property
    def _recorded(self) -> Recorder:
        if self._recorder is None:
            raise InputError("nothing was recorded: call trainer.fit first.")
        return self._recorder

    def target(
        self,
        loss: Loss | Task = F.cross_entropy,
        device: str | torch.device = "cpu",
        *,
        task: Task | str | None = None,
    ) -> Target:
        """The target with the recorded trajectory; ``loss`` and ``task`` are those of ``Recorder.target``."""
        return self._recorded.target(loss, device, task=task)

    def samples(self, task: Task | str | None = None, collate: Collate | None = None) -> Samples:
        """The training set of the Trainer, as its loader makes batches of it."""
        _ = self._recorded
        return Samples.from_dataset(self._loader, task=task, collate=collate)

    @property
    def retrain(self) -> Callable[[np.ndarray, int], nn.Module]:
        """``retrain(rows, order)``: the same training without the samples at ``rows``, for ``audit`` and ``refine``.

        It calls ``make``, and starts from θ_0 with the random numbers of the recorded training. Batches keep their
        order; one without samples moves nothing. Batch order 0 is that of the target.
        """
        recorder = self._recorded
        if self._make is None:
            raise InputError(
                "a Lightning Trainer cannot be copied: give DatamodelCallback(make) a function that returns a new "
                "module, a new Trainer and the loader."
            )
        assert self._random is not None
        return _Retrain(self._make, self._name, recorder.trajectory[0], self._random)


def _network(module: Any, name: str) -> nn.Module:
    """The network that returns the outputs."""
    try:
        network: nn.Module = module.get_submodule(name)
    except AttributeError:
        raise InputError(f"the module has no submodule '{name}': give the name of the one with the outputs.") from None
    if type(network).forward.__qualname__ in _NO_FORWARD:
        raise InputError(
            "the module has no forward: write one that returns the outputs, or name the submodule that does, as in "
            "DatamodelCallback(network='net')."
        )
    return network


def _check(trainer: Any, module: Any) -> None:
    """Refuse trainings that cannot be recorded whole."""
    if not module.automatic_optimization or len(trainer.optimizers) != 1:
        raise InputError(
            "only automatic optimization with one optimizer can be recorded: put ddm.record around a loop of your own."
        )
    if trainer.world_size > 1:
        raise InputError("only a training in one process can be recorded: give the Trainer devices=1.")
    if trainer.global_step:
        raise InputError("the recording must begin with the training: call fit without ckpt_path.")


@dataclass(frozen=True)
class _Retrain:
    """Makes a module and a Trainer again and trains without some samples.

    start: θ_0
    """

    make: Make
    name: str
    start: State
    random: Randomness

    def __call__(self, rows: np.ndarray, order: int = 0) -> nn.Module:
        """The network, trained without the samples at ``rows``."""
        with kept():
            module, trainer, data = self.make()
            module.training_step = _passing_over(module.training_step)
            trainer.callbacks.append(_Follow(self, order))
            if isinstance(data, DataLoader):
                trainer.fit(module, _without(data, rows, order))
            else:
                original = data.train_dataloader
                data.train_dataloader = lambda: _without(original(), rows, order)
                trainer.fit(module, datamodule=data)
            del module.training_step
        return _network(module, self.name)


class _Follow(Callback):  # type: ignore[misc]
    """Gives a training the parameters and the random numbers with which the recorded one began."""

    def __init__(self, training: _Retrain, order: int) -> None:
        self._training, self._order = training, order

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        load_state(_network(pl_module, self._training.name), self._training.start)
        self._training.random.restore(order=self._order)


def _without(loader: DataLoader[Any], rows: np.ndarray, order: int) -> DataLoader[Any]:
    """The loader without some samples, in another batch order."""
    check_loader(loader)
    reseed(sampler_of(loader), order)
    return Remaining(loader, rows, empty={}) if len(rows) else loader


def _passing_over(step: Callable[..., Any]) -> Callable[..., Any]:
    """A training step that returns nothing for an empty batch, which Lightning passes over."""

    @functools.wraps(step)
    def training_step(batch: Any, *arguments: Any, **options: Any) -> Any:
        return None if isinstance(batch, dict) and not batch else step(batch, *arguments, **options)

    return training_step
