"""Record the training of a Hugging Face ``Trainer``, and train again by it without some samples.

callback = DatamodelCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train()
dm = DistilledDatamodel.fit(callback.target(), callback.samples())
dm.audit(test, by=callback.retrain)
"""

from __future__ import annotations

import copy
import dis
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback

from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.errors import InputError
from ddm.integrations.randomness import Randomness, kept
from ddm.networks.state import load_state
from ddm.training.leave_out import Remaining, check_loader
from ddm.training.recorder import Recorder
from ddm.training.target import Target
from ddm.training.wrappers import without_accelerate

_KINDS = {
    "single_label_classification": "classification",
    "multi_label_classification": "multilabel",
    "regression": "regression",
}
"""Tasks by the names that configurations of transformers have for them."""

_QUIET = {
    "save_strategy": "no",
    "eval_strategy": "no",
    "logging_strategy": "no",
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "disable_tqdm": True,
    "report_to": [],
}
"""Arguments of a training that nobody watches."""


class DatamodelCallback(TrainerCallback):
    """Records the training of the ``Trainer`` that has it among its callbacks.

    every:     optimizer steps between checkpoints; by default 16 to 32 checkpoints, evenly spaced over the training
    directory: where checkpoints are written; in memory by default
    """

    def __init__(self, *, every: int | None = None, directory: Path | str | None = None) -> None:
        self._options: dict[str, Any] = {"every": every or "auto", "directory": directory}
        self._trainer: Any = None
        self._given_optimizer = False
        self._recorded: _Recorded | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Find the Trainer, which tells its callbacks everything but itself."""
        self._trainer = _caller()
        self._given_optimizer = self._trainer.optimizer is not None or self._trainer.lr_scheduler is not None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Begin the recording, at θ_0."""
        if self._trainer is None:
            raise InputError(
                "DatamodelCallback must see how the Trainer is made: give it as Trainer(…, callbacks=[callback])."
            )
        if self._recorded is not None:
            self._recorded.recorder.close()
        loader = parts["train_dataloader"]
        _check(args, state, loader)
        recorder = Recorder(parts["model"], parts["optimizer"], **self._options)
        self._recorded = _Recorded(recorder, loader, Randomness.now(loader), {}, state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember the random numbers, of which an evaluation draws some, for ``retrain``, which does not evaluate."""
        if self._recorded is not None and self._trainer.is_in_train:
            self._recorded.evaluations[state.global_step] = Randomness.now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the recording."""
        if self._recorded is not None:
            self._recorded.recorder.finish()
            self._recorded.recorder.close()

    @property
    def _training(self) -> _Recorded:
        if self._recorded is None:
            raise InputError("nothing was recorded: call trainer.train() first.")
        return self._recorded

    def target(self, task: Task | str | None = None, device: str | torch.device = "cpu") -> Target:
        """The target with the recorded trajectory.

        task: what the outputs mean; by default what the model's configuration says, with the Trainer's label smoothing
        """
        return self._training.recorder.target(self._task(task), device)

    def samples(self, task: Task | str | None = None) -> Samples:
        """The training set of the Trainer, as its collator makes batches of it."""
        loader, task = self._training.loader, self._task(task)
        return Samples.from_dataset(loader.dataset, self._classes(task), task=task, collate=loader.collate_fn)

    def _task(self, task: Task | str | None) -> Task:
        """The task that the user names, or that of the model."""
        if task is not None:
            return task if isinstance(task, Task) else Task(task)
        model, smoothing = self._trainer.model, self._trainer.args.label_smoothing_factor
        kind = getattr(getattr(model, "config", None), "problem_type", None)
        names = (type(model).__name__, type(getattr(model, "base_model", None)).__name__)
        base = getattr(model, "get_base_model", lambda: model)()
        if type(base).__name__.endswith("ForTokenClassification"):
            kind = "tokens"
        if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in (*names, type(base).__name__)):
            raise InputError(
                "a language model predicts the next token, which no built-in task does: give a Task of your own."
            )
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing) if smoothing and kind in (None, "tokens") else None
        if smoothing and kind == "single_label_classification":
            loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        return Task(_KINDS.get(kind or "", kind or "classification"), loss)

    def _classes(self, task: Task) -> list[str] | None:
        """The names of the classes in the model's configuration, if somebody has named them."""
        names = getattr(getattr(self._trainer.model, "config", None), "id2label", None) or {}
        found = [str(names[number]) for number in sorted(names)]
        generic = found == [f"LABEL_{number}" for number in range(len(found))]
        return None if generic or not task.has_classes else found

    @property
    def retrain(self) -> Callable[[np.ndarray, int], nn.Module]:
        """``retrain(rows, order)``: the same training without the samples at ``rows``, for ``audit`` and ``refine``.

        It makes the Trainer again, with its class, arguments, seeds and collator, and starts from θ_0. Batches keep
        their order; one without samples moves nothing. Batch order 0 is that of the target. Other callbacks of
        the Trainer are left out.
        """
        training = self._training
        if self._given_optimizer:
            raise InputError(
                "the Trainer was given its optimizer or scheduler (optimizers=…), which cannot be made again: give "
                "optimizer_cls_and_kwargs=… instead, or write a function retrain(rows, order) of your own."
            )
        return _Retrain.of(self._trainer, training)


@dataclass
class _Recorded:
    """A training that was recorded, with what is needed to repeat it.

    start:       the random numbers when it began
    evaluations: those after each evaluation, by the number of optimizer steps before it
    """

    recorder: Recorder
    loader: Any
    start: Randomness
    evaluations: dict[int, Randomness]
    state: Any


def _check(args: Any, state: Any, loader: Any) -> None:
    """Refuse trainings that cannot be recorded whole."""
    base = getattr(loader, "base_dataloader", loader)
    if isinstance(base, DataLoader):
        check_loader(base)
    else:
        raise InputError(f"the Trainer's loader is a {type(base).__name__}: use a DataLoader.")
    if args.world_size > 1 or args.n_gpu > 1:
        raise InputError("only a training in one process and on one device can be recorded: start it without others.")
    if state.global_step:
        raise InputError("the recording must begin with the training: train without resume_from_checkpoint.")
    if args.load_best_model_at_end:
        raise InputError(
            "load_best_model_at_end replaces the trained parameters after the last step, so the steps do not lead to "
            "them: turn it off."
        )


def _caller() -> Any:
    """The Trainer in whose constructor this is called."""
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise InputError("DatamodelCallback belongs to a Trainer of transformers: give it as Trainer(…, callbacks=[…]).")


@dataclass(frozen=True)
class _Retrain:
    """Makes a Trainer again and trains without some samples.

    kind:    the class of the Trainer
    network: the network at θ_0
    options: arguments of ``Trainer``
    own:     attributes that a subclass of the user's has beyond those
    steps:   number of optimizer steps, which may be less than planned
    """

    kind: type
    network: nn.Module
    options: Mapping[str, Any]
    own: Mapping[str, Any]
    start: Randomness
    evaluations: Mapping[int, Randomness]
    steps: int

    @classmethod
    def of(cls, trainer: Any, training: _Recorded) -> _Retrain:
        """The function that repeats a recorded training."""
        network = copy.deepcopy(without_accelerate(trainer.model))
        load_state(network, training.recorder.trajectory[0])
        names = ("data_collator", "train_dataset", "processing_class", "compute_loss_func", "optimizer_cls_and_kwargs")
        args = copy.copy(trainer.args)
        for name, value in _QUIET.items():
            setattr(args, name, value)
        options = {name: getattr(trainer, name) for name in names} | {"args": args}
        own = {name: value for name, value in vars(trainer).items() if name not in _SET_BY_TRAINER}
        return cls(
            type(trainer), network, options, own, training.start, training.evaluations, training.state.global_step
        )

    def __call__(self, rows: np.ndarray, order: int = 0) -> nn.Module:
        """The network, trained without the samples at ``rows``."""
        with kept(), tempfile.TemporaryDirectory(prefix="ddm-trainer-") as folder:
            trainer = self._make(rows, order, folder)
            trainer.train()
        network: nn.Module = without_accelerate(trainer.model)
        return network

    def _make(self, rows: np.ndarray, order: int, folder: str) -> Any:
        """The Trainer, without the constructor of the user's subclass, whose arguments nobody knows."""
        trainer: Any = object.__new__(type(self.kind.__name__, (_Without, self.kind), {}))
        vars(trainer).update(self.own)
        args = copy.copy(self.options["args"])
        args.output_dir = folder
        follow = _Follow(self, order)
        Trainer.__init__(
            trainer, model=copy.deepcopy(self.network), callbacks=[follow], **{**self.options, "args": args}
        )
        trainer.remove_callback(PrinterCallback)
        trainer.rows_left_out = rows
        return trainer


class _Follow(TrainerCallback):
    """Gives a training the random numbers and the length of the recorded one."""

    def __init__(self, training: _Retrain, order: int) -> None:
        self._training, self._order = training, order

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._training.start.restore(parts["train_dataloader"], self._order)
        self._after_evaluation(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self._after_evaluation(state.global_step)
        if state.global_step >= self._training.steps:
            control.should_training_stop = True
        return control

    def _after_evaluation(self, step: int) -> None:
        if not self._order and step in self._training.evaluations:
            self._training.evaluations[step].restore()


class _Without:
    """Changes a Trainer so that it leaves samples out. A batch without samples is empty and moves nothing."""

    rows_left_out: np.ndarray

    def get_train_dataloader(self) -> Any:
        """The loader of the user's Trainer, without the samples."""
        loader = super().get_train_dataloader()  # type: ignore[misc]
        if not len(self.rows_left_out):
            return loader
        if hasattr(loader, "base_dataloader"):
            loader.base_dataloader = Remaining(loader.base_dataloader, self.rows_left_out, empty={})
            return loader
        return Remaining(loader, self.rows_left_out, empty={})

    def training_step(self, model: nn.Module, inputs: Any, *arguments: Any, **options: Any) -> Tensor:
        """Pass an empty batch over."""
        if not inputs:
            return torch.zeros((), device=next(model.parameters()).device)
        loss: Tensor = super().training_step(model, inputs, *arguments, **options)  # type: ignore[misc]
        return loss

    def _get_num_items_in_batch(self, batches: list[Any], *arguments: Any) -> Any:
        return super()._get_num_items_in_batch([one for one in batches if one], *arguments)  # type: ignore[misc]


_SET_BY_TRAINER = {
    instruction.argval
    for method in (Trainer.__init__, Trainer.create_accelerator_and_postprocess)
    for instruction in dis.get_instructions(method)
    if instruction.opname == "STORE_ATTR"
}
"""Attributes that the constructor of ``Trainer`` sets."""
