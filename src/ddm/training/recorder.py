"""Record a training loop: its checkpoints, and what its optimizer did between them.

``with ddm.record(model, optimizer) as recorder:`` around any loop is enough. Hooks on the optimizer's steps read
learning rates, momentum, weight decay and second moments where they are used, so schedules, parameter groups and
frozen parameters need no further word. Hooks on the gradients see clipping, and a hook on the network's outputs
sees the scale of the loss: mean or sum, accumulation over several batches, and the scaling of mixed precision.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from ddm.data.losses import Loss
from ddm.data.tasks import Task, task_of
from ddm.errors import InputError
from ddm.networks.state import State, check_state, hash_of_state, shapes_of, state_of
from ddm.training.probes import Probe, contradiction, mean_scale
from ddm.training.target import Target
from ddm.training.trajectory import Trajectory
from ddm.training.watch import MAX_PROBES, Watch
from ddm.training.wrappers import inner_network, inner_optimizer, without_accelerate

_MAX_AUTOMATIC = 32
"""Automatic checkpoints are thinned out by half when there are more than this."""


@contextlib.contextmanager
def record(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: int | None = None,
    averaged: nn.Module | None = None,
    directory: Path | str | None = None,
) -> Iterator[Recorder]:
    """Record the training inside a ``with`` block, with a checkpoint every ``every`` optimizer steps.

    every:     ``len(loader)`` gives one checkpoint per epoch. By default the recorder takes 16 to 32 checkpoints,
               evenly spaced over the training
    averaged:  the network that holds averaged weights (EMA), if that is the one to explain
    directory: where checkpoints are written; in memory by default
    """
    recorder = Recorder(network, optimizer, every=every or "auto", averaged=averaged, directory=directory)
    try:
        yield recorder
        recorder.finish()
    finally:
        recorder.close()


class Recorder:
    """Records the checkpoints of a network while the user's own loop trains it.

    network:   the network, before its first training step (θ_0)
    optimizer: the optimizer of the loop. Without it the learning rates are estimated from the checkpoints
    every:     optimizer steps between checkpoints, or ``auto``; None leaves them to calls of ``snapshot``
    averaged:  the network that holds averaged weights (EMA), if that is the one to explain
    directory: where checkpoints are written; in memory by default
    task:      the task with the loss of the training, if they are known already; otherwise give them to ``target``
    resume:    what ``state_dict`` returned, to continue a recording in ``directory``
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int | str | None = None,
        averaged: nn.Module | None = None,
        directory: Path | str | None = None,
        task: Task | None = None,
        resume: Mapping[str, Any] | None = None,
    ) -> None:
        _check_every(every, optimizer)
        network, optimizer = inner_network(network), None if optimizer is None else inner_optimizer(optimizer)
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise InputError("the network is frozen: call requires_grad_(True) on the parameters that you train.")
        self.network, self._averaged = network, _unwrapped(averaged, network)
        self._automatic = every == "auto"
        self._every = 1 if isinstance(every, str) else every
        self._known = task
        self._step = 0
        self._probes: list[list[Probe]] = []
        self._scales: list[float] = []
        self._watch = None if optimizer is None else Watch(network, optimizer, self._after_step)
        self._end: str | None = None
        if resume is None:
            self.trajectory = Trajectory(directory)
            self.trajectory.append(self._state(), 0, 0.0)
        else:
            self._resume(resume, directory)

    def snapshot(self, steps: int = 1) -> None:
        """Store the parameters as they are now. Without an optimizer, ``steps`` counts the steps since the last one."""
        state = self._state()
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise InputError(f"the parameters are not finite at snapshot {len(self.trajectory)}: lower the lr.")
        if self._watch is None:
            self._step += steps
            self.trajectory.append(state, self._step)
            return
        seen, moments, probes = self._watch.take()
        if self._known is not None:
            seen = seen.rescaled(mean_scale(probes, self._known))
        self._probes.append(probes)
        rate = self.trajectory.cumulative_rates[-1] + self._watch.mean_rate(seen)
        self.trajectory.append(state, self._step, rate, seen, moments)

    def finish(self) -> None:
        """Store the final parameters, unless the last checkpoint holds them."""
        last, state = self.trajectory[-1], self._state()
        if all(torch.equal(tensor.cpu(), last[name]) for name, tensor in state.items()):
            return
        if self._watch is not None and 0 < self._step == self.trajectory.steps[-1]:
            self.trajectory.replace_last(state)  # averaged weights change after the optimizer's step
        else:
            self.snapshot()

    def close(self) -> None:
        """Remove all hooks. The recorder sees no further steps."""
        if self._watch is not None:
            self._end = self._end or self._parameters()
            self._watch.close()

    def target(
        self,
        loss: Loss | Task = F.cross_entropy,
        device: str | torch.device = "cpu",
        *,
        task: Task | str | None = None,
    ) -> Target:
        """The target with the recorded trajectory. The recording ends here.

        loss: the loss of the training: one of torch's losses, a function that returns one value per sample ``(b,)``,
              or any other function that is a mean or a sum over the batch
        task: what the outputs mean, if the loss does not say it: a ``Task``, or binary, multilabel, regression, …
        """
        if self._end not in (None, self._parameters()):
            raise InputError(
                "the parameters changed after the recording had ended: record the whole training, or call target "
                "before you train on."
            )
        self.finish()
        self.close()
        if len(self.trajectory) < 2:
            raise InputError("the parameters did not change since the recorder was created: create it before training.")
        found = self._known or self._task(loss, task)
        for sentence in self._warnings(found):
            warnings.warn(sentence, stacklevel=2)
        if self._known is None and self._watch is not None:
            self._rescale(found)
        inputs = self._watch.inputs if self._watch is not None and self._watch.inputs.known else None
        return Target(without_accelerate(self.network), self.trajectory, found, device=device, inputs=inputs)

    def _task(self, loss: Loss | Task, task: Task | str | None) -> Task:
        """The task that the user names, or that the loss implies for a network with these outputs."""
        if isinstance(task, str):
            return Task(task, None if loss is F.cross_entropy or isinstance(loss, Task) else loss)
        return task_of(loss, self._watch.width if self._watch is not None else None) if task is None else task

    def _warnings(self, task: Task) -> Iterator[str]:
        """Sentences on facts that the recorder could not see, and on gradients that the loss does not explain."""
        watch, estimated = self._watch, "so ddm estimates one learning rate for all parameters from the checkpoints"
        if watch is None:
            yield f"the recorder did not see the optimizer, {estimated}: use ddm.record(model, optimizer)."
            return
        if watch.description is None:
            yield f"ddm does not know the optimizer {watch.name}, {estimated}."
        if watch.late:
            yield "the optimizer had already made steps when the recorder was created: create it before training."
        other = contradiction([probe for some in self._probes for probe in some], task)
        if other is not None:
            yield f"the loss given does not explain the gradients of the training. It seems to have used {other}."

    def _rescale(self, task: Task) -> None:
        """Express the learning rates in units of the gradient of the mean loss, as far as the probes tell its scale."""
        every = [probe for some in self._probes for probe in some]
        scales = [1.0, *(mean_scale(some or every, task) for some in self._probes)]
        before, self._scales = self._scales or [1.0] * len(scales), scales  # of an earlier call of ``target``
        if scales != before:
            self.trajectory.rescale([new / old for new, old in zip(scales, before, strict=True)])

    def _after_step(self) -> None:
        """Count a step, and take a checkpoint if it is time."""
        self._step += 1
        if self._every is None or self._step % self._every:
            return
        self.snapshot()
        if self._automatic and len(self.trajectory) > _MAX_AUTOMATIC:
            self._thin()
            self._every *= 2

    def _thin(self) -> None:
        """Keep every second checkpoint."""
        self.trajectory.thin()
        pairs = (self._probes[t : t + 2] for t in range(0, len(self._probes), 2))
        self._probes = [[probe for some in pair for probe in some][:MAX_PROBES] for pair in pairs]

    def _state(self) -> State:
        return state_of(self._averaged)

    def _parameters(self) -> str:
        """Hash of the parameters. Buffers may change after a training: statistics of BatchNorm are estimated again."""
        return hash_of_state(dict(self._averaged.named_parameters()))

    def state_dict(self) -> dict[str, Any]:
        """The recording between two steps: numbers under ``facts``, tensors under ``tensors``.

        Save it with your own checkpoint, and give it as ``resume`` to continue. The checkpoints stay in the directory.
        """
        if self._watch is None or self.trajectory.directory is None:
            raise InputError("only a recording with an optimizer and a directory can resume: give both.")
        facts = {"step": self._step, "every": self._every, "checkpoints": len(self.trajectory)}
        return {"facts": facts | self._watch.facts(), "tensors": self._watch.tensors()}

    def _resume(self, state: Mapping[str, Any], directory: Path | str | None) -> None:
        """Continue after the checkpoints that the directory had when ``state_dict`` was called."""
        if self._watch is None or directory is None:
            raise InputError("a recording resumes with its optimizer and its directory: give both.")
        facts = state["facts"]
        counters = [facts["step"] + 1, facts["checkpoints"], 1 if facts["every"] is None else facts["every"]]
        if any(type(counter) is not int or counter < 1 for counter in counters):
            raise ValueError("the counters of the recording are invalid")
        self.trajectory = Trajectory.open(directory)
        if len(self.trajectory) < facts["checkpoints"]:
            raise InputError(f"'{directory}' is missing checkpoints: restore them or choose another folder.")
        self.trajectory.truncate(facts["checkpoints"])
        self._step, self._every = facts["step"], facts["every"]
        self._probes = [[] for _ in range(len(self.trajectory) - 1)]
        self._watch.load(facts, state["tensors"])


def _check_every(every: int | str | None, optimizer: torch.optim.Optimizer | None) -> None:
    if every is None:
        return
    if every != "auto" and (type(every) is not int or every < 1):
        raise InputError(f"a checkpoint every {every} steps is not possible: give a whole number of at least 1.")
    if optimizer is None:
        raise InputError("checkpoints every few steps need the optimizer: give it, or call snapshot yourself.")


def _unwrapped(averaged: nn.Module | None, network: nn.Module) -> nn.Module:
    """The network whose state is recorded, without torch's wrapper of averaged weights."""
    if averaged is None:
        return network
    inner = averaged.module if isinstance(averaged, AveragedModel) else averaged
    check_state(state_of(inner), shapes_of(network), "the averaged network")
    return inner
