"""Hooks on an optimizer and a network that see what every training step did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ddm.data.tasks import logits_of
from ddm.errors import InputError
from ddm.networks.state import State
from ddm.training.gradient_watch import GradientWatch
from ddm.training.input_moments import InputMoments
from ddm.training.optimizers import describing
from ddm.training.probes import Probe
from ddm.training.steps import Steps, TensorSteps

MAX_PROBES = 4
"""Maximum number of probes between two checkpoints."""


class Watch:
    """Sums what an optimizer's steps did to each parameter tensor, until ``take`` returns the sums.

    network:     the network whose parameters the optimizer trains
    description: the optimizer's entry in ``ddm.training.optimizers``; None if it has none
    on_step:     called after each step
    inputs:      moments of the inputs of the first batches
    width:       size of the last dimension of the outputs; None before the first batch
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, on_step: Callable[[], object]) -> None:
        self._names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
        self._check(optimizer)
        self.optimizer, self.description, self._on_step = optimizer, describing(optimizer), on_step
        self.late = _has_stepped(optimizer)
        self._gradients = GradientWatch(network.parameters())
        self._clipping, self._samples, self._depth = 1.0, 0, 0
        self._pending: Probe | None = None
        self.inputs = InputMoments()
        self.width: int | None = None
        self._sums: dict[str, list[Any]] = {}
        self._moments: State = {}
        self._probes: list[Probe] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            network.register_forward_hook(_Hook(self._after_forward), with_kwargs=True),
        ]

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not any(id(parameter) in self._names for parameter in trained):
            raise InputError(
                "the optimizer does not train any parameter of this network: create it with network.parameters()."
            )

    @property
    def name(self) -> str:
        """The name of the optimizer's class."""
        return type(self.optimizer).__name__

    def take(self) -> tuple[Steps, State | None, list[Probe]]:
        """The steps since the last call, the mean D² of each parameter over them, and a few probes."""
        tensors = {name: TensorSteps(*sums) for name, sums in self._sums.items()}
        scaled = self.description is not None and self.description.scales_parameters()
        moments = {name: total / max(tensors[name].count, 1) for name, total in self._moments.items()}
        taken = Steps(tensors, scaled, self.name), moments or None, self._probes
        self._sums, self._moments, self._probes = {}, {}, []
        return taken

    def mean_rate(self, steps: Steps) -> float:
        """The rate of these steps, averaged over the parameters; NaN if the optimizer is unknown."""
        if self.description is None:
            return math.nan
        size = sum(math.prod(self._shapes[name]) for name in steps.tensors)
        # fsum does not depend on the order of the tensors, which may differ in a resumed recording.
        return math.fsum(math.prod(self._shapes[name]) * one.rate for name, one in steps.tensors.items()) / max(size, 1)

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._gradients.close()

    def facts(self) -> dict[str, Any]:
        """The sums since the last ``take`` as JSON values, and the sizes of the steps of its probes."""
        return {"sums": self._sums, "probes": [probe.step_samples for probe in self._probes]}

    def tensors(self) -> State:
        """The tensors since the last ``take``, by name: sums of D², and probes."""
        found = {f"moment:{name}": total for name, total in self._moments.items()}
        for number, probe in enumerate(self._probes):
            found |= {f"probe:{number}:outputs": probe.outputs, f"probe:{number}:slopes": probe.slopes}
            found |= {} if probe.labels is None else {f"probe:{number}:labels": probe.labels}
        return found

    def load(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from what ``facts`` and ``tensors`` returned. Raises ValueError, KeyError or TypeError."""
        sums = Steps.from_json({"tensors": facts["sums"], "scaled": False, "optimizer": ""}).tensors
        names = [name for name in tensors if name.startswith("moment:")]
        moments = {name.removeprefix("moment:"): tensors[name].clone() for name in names}
        if not sums.keys() <= self._shapes.keys() or any(
            self._shapes.get(name) != tuple(moment.shape) or not moment.is_floating_point()
            for name, moment in moments.items()
        ):
            raise ValueError("the recorded steps belong to another network")
        self._sums = {name: list(facts["sums"][name]) for name in sums}
        self._moments = moments
        self._probes = [
            Probe.load(
                tensors[f"probe:{number}:outputs"],
                tensors[f"probe:{number}:slopes"],
                count,
                tensors.get(f"probe:{number}:labels"),
            )
            for number, count in enumerate(facts["probes"])
        ]
        self.late = False

    def _after_forward(self, _module: nn.Module, inputs: Any, named: Mapping[str, Any], found: Any) -> None:
        outputs = found if isinstance(found, Tensor) else logits_of(found)
        if outputs is not None and outputs.requires_grad and torch.is_grad_enabled() and outputs.dim():
            self.width = 1 if outputs.dim() == 1 else int(outputs.shape[-1])
            labels = named.get("labels")
            seen = outputs.detach(), labels if isinstance(labels, Tensor) else None
            measured = self.inputs.measure(inputs)
            outputs.register_hook(lambda slopes: self._after_outputs(*seen, slopes, measured))

    def _after_outputs(self, outputs: Tensor, labels: Tensor | None, slopes: Tensor, measured: Tensor | None) -> None:
        """Count the samples of a step. A backward pass that finds no gradients starts a new sum of gradients."""
        self.inputs.add(measured)
        if self._gradients.found_none:
            self._samples = 0
            self._gradients.forget()
        self._samples += len(outputs)
        if self._pending is None and len(self._probes) < MAX_PROBES:
            self._pending = Probe.of(outputs, slopes, labels)

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Measure the clipping: now, or after the closure of a step, which computes the gradients first."""
        self._depth += 1  # a subclass that calls ``super().step()`` runs the hooks twice
        closure = options.get("closure", args[1] if len(args) > 1 else None)
        if self._depth > 1:
            return None
        if closure is None:
            self._clipping = self._gradients.factor()
            return None

        def watched() -> Any:
            value = closure()
            self._clipping = self._gradients.factor()
            return value

        return args[:1], {**options, "closure": watched}

    def _after_step(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        for options in self.optimizer.param_groups:
            for parameter in options["params"]:
                name = self._names.get(id(parameter))
                if name is not None and parameter.grad is not None:
                    self._add(name, options, self.optimizer.state.get(parameter, {}))
        if self._pending is not None:
            self._probes.append(replace(self._pending, step_samples=self._samples))
        self._pending, self._samples = None, 0
        self._gradients.forget()
        self._on_step()

    def _add(self, name: str, options: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Add a step of one parameter tensor to its sums."""
        sums = self._sums.setdefault(name, [0.0, 0.0, 0.0, 0.0, 0])
        if self.description is None:
            sums[4] += 1
            return
        if self.description.ignores_step(options, state):
            return
        rate, decay = self.description.rate(options, state), options.get("weight_decay", 0.0)
        sums[0] += rate * self._clipping
        sums[2 if self.description.decouples_decay(options) else 1] += rate * decay
        sums[3] += options.get("eps", 0.0)
        sums[4] += 1
        moment = self.description.moment(options, state)
        if moment is not None:
            self._add_moment(name, *moment)

    def _add_moment(self, name: str, moment: Tensor, factor: float) -> None:
        if name not in self._moments:
            self._moments[name] = torch.zeros_like(moment)
        self._moments[name].add_(moment, alpha=factor)


def _has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """True if the optimizer has made a step already, as far as its state shows."""
    return any(float(state.get("step", 1)) > 0 for state in optimizer.state.values() if state)


class _Hook:
    """A hook that stays behind when its network is copied, for example to average its weights."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call(*arguments)

    def __deepcopy__(self, _memo: Any) -> _Hook:
        return _Hook(None)

    def __reduce__(self) -> tuple[type[_Hook], tuple[None]]:
        return _Hook, (None,)
