"""The target ℳ: the network under study, with its trajectory θ_0 … θ_τ.

``ddm.train`` trains a target by a recipe; ``ddm.record`` records one in the user's own training loop.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.compute.backends import Backend
from ddm.compute.progress import bar
from ddm.data.inputs import X, at_once, parts
from ddm.data.losses import Loss, SampleLoss
from ddm.data.samples import Samples
from ddm.data.tasks import Task, task_of
from ddm.errors import InputError
from ddm.networks.features import head_parameters
from ddm.networks.flat import FlatNetwork
from ddm.networks.state import State, architecture, check_state, fingerprint_of, load_state, shapes_of
from ddm.training import augmentation
from ddm.training.input_moments import InputMoments
from ddm.training.recipe import Recipe
from ddm.training.trajectory import Trajectory


class Target:
    """The network under study.

    flat:       the network as a function of θ, in evaluation mode
    trajectory: the checkpoints θ_0 … θ_τ
    task:       what the network's outputs mean, and the loss that it was trained with
    recipe:     the recipe that ``train`` used; None for a recorded training
    data:       fingerprint of the training set that ``train`` used; None for a recorded training
    inputs:     moments of the inputs that a recorder saw; None if it saw none
    theta:      θ_τ ``(P,)``
    fixed:      the frozen parameters and buffers of θ_τ
    statistics: running statistics by checkpoint, which replace the recorded ones (``ddm.training.statistics``)
    trained:    names of the parameters that the training changed. ``displacing`` lets a datamodel move some of them
                only: those of ``flat``
    """

    def __init__(
        self,
        network: nn.Module,
        trajectory: Trajectory,
        loss: Task | str | Loss | SampleLoss = F.cross_entropy,
        recipe: Recipe | None = None,
        device: str | torch.device = "cpu",
        data: str | None = None,
        inputs: InputMoments | None = None,
        displaced: Collection[str] | None = None,
    ) -> None:
        trajectory.check()
        self.device = device_of(device)
        self.data, self.inputs = data, inputs
        self.task = task_of(loss)
        network = _freeze_untrained(network, trajectory)
        self.trained = tuple(name for name, parameter in network.named_parameters() if parameter.requires_grad)
        network = network if displaced is None else _freeze(network, displaced)
        self.flat = FlatNetwork(network, self.task.outputs)
        self.flat.network.to(self.device)
        self.shapes = shapes_of(self.flat.network)
        self.trajectory = trajectory
        self.recipe = recipe
        self.statistics: Mapping[int, State] = {}
        final = self.state(-1)
        load_state(self.flat.network, final)
        self.theta = self.flat.vector(final)
        self.fixed = self.flat.fixed(final)

    @property
    def network(self) -> nn.Module:
        """The trained network, θ_τ, in evaluation mode. Copy it before you change it."""
        return self.flat.network

    @property
    def loss(self) -> SampleLoss:
        """The loss that it was trained with, for each sample and as their mean."""
        return self.task.loss

    def __repr__(self) -> str:
        return (
            f"Target: {type(self.network).__name__} with {self.flat.size:,} parameters and {len(self.trajectory):,} "
            f"checkpoints over {self.trajectory.steps[-1]:,} optimizer steps"
        )

    def displacing(self, parameters: str | Sequence[str], x: X) -> Target:
        """This target for a datamodel that moves some of the trained parameters only.

        The others count as fixed, at each checkpoint as they were there.

        parameters: ``head`` for the last linear layer, or names of parameters or patterns such as ``layer4.*``
        x:          some inputs, which show the last layer
        """
        wanted = (
            head_parameters(self.network, x.to(self.theta), self.task.outputs)
            if parameters == "head"
            else [parameters]
            if isinstance(parameters, str)
            else list(parameters)
        )
        chosen = [name for name in self.trained if any(fnmatchcase(name, each) for each in wanted)]
        if not chosen:
            raise InputError(
                f"no trained parameter is named {' or '.join(wanted)}: give 'head', or names such as {self.trained[0]}."
            )
        other = Target(
            self.start(), self.trajectory, self.task, self.recipe, self.device, self.data, self.inputs, chosen
        )
        other.statistics = self.statistics
        return other

    def start(self) -> nn.Module:
        """A new network with θ_0, whose parameters can be trained if the training changed them."""
        network = self.flat.module(*self.at(0))
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in self.trained)
        return network

    def state(self, t: int) -> State:
        """Checkpoint ``t`` on the target's device."""
        state = self.trajectory[t]
        check_state(state, self.shapes, f"checkpoint {t % len(self.trajectory)}")
        state = {**state, **self.statistics.get(t % len(self.trajectory), {})}
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def at(self, t: int) -> tuple[Tensor, State]:
        """θ_t ``(P,)`` and the fixed tensors of checkpoint ``t``."""
        state = self.state(t)
        return self.flat.vector(state), self.flat.fixed(state)

    def for_workers(self, checkpoints: Sequence[int], backend: Backend) -> Target:
        """This target for workers of ``backend``. If they cannot read its files, these checkpoints are in memory."""
        if backend.kind == "serial" or (self.trajectory.directory is not None and not backend.remote):
            return self
        other = copy.copy(self)
        other.trajectory = self.trajectory.select(checkpoints)
        other.statistics = {new: self.statistics[t] for new, t in enumerate(checkpoints) if t in self.statistics}
        return other

    def outputs(self, x: X, batch_size: int = 512) -> Tensor:
        """Outputs ``(n, L)`` of the trained network for inputs ``(n, ...)``."""
        with torch.no_grad():
            found = [self.flat(self.theta, self.fixed, part.to(self.device)) for part in parts(x, batch_size)]
        return torch.cat(found)

    def as_trained(self, x: X, generator: torch.Generator) -> X:
        """Inputs ``(b, ...)`` as the training saw them: with the random augmentation of the recipe, if it has any."""
        kind = "none" if self.recipe is None else self.recipe.augment
        return augmentation.augment(x, kind, generator)

    def accuracy(self, samples: Samples) -> float:
        """Fraction of samples that the trained network classifies correctly."""
        return accuracy_of(self.network, samples, self.task)

    def fingerprint(self) -> str:
        """Hash of the architecture and of θ_τ with its buffers."""
        return fingerprint_of(architecture(self.network), self.trajectory[-1])

    def origin(self, data: str) -> dict[str, str]:
        """Identify network, target and training set (by its fingerprint ``data``), to compare stored results."""
        return {"network": architecture(self.network), "target": self.fingerprint(), "data": data}


def _freeze_untrained(network: nn.Module, trajectory: Trajectory) -> nn.Module:
    """The network with those parameters frozen that no step of the training changed."""
    trained = trajectory.trained
    if trained is None:
        return network
    network = copy.deepcopy(network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)
    return network


def _freeze(network: nn.Module, displaced: Collection[str]) -> nn.Module:
    """The network with all parameters frozen but these."""
    network = copy.deepcopy(network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in displaced)
    return network


def accuracy_of(network: nn.Module, samples: Samples, task: Task | None = None, batch_size: int = 512) -> float:
    """Fraction of samples that a network in evaluation mode classifies correctly."""
    if not len(samples):
        raise InputError("the accuracy needs samples: give at least one.")
    task = task or Task()
    if not task.has_classes:
        raise InputError(f"{task.kind} has no accuracy: ask about its loss instead.")
    device = next(network.parameters()).device
    correct = 0
    rows = torch.arange(len(samples)).split(at_once(batch_size, samples.bytes_each))
    with torch.no_grad(), bar("measuring accuracy", len(rows)) as advance:
        for x, y in samples.batches(rows):
            advance(1)
            correct += int((task.outputs(network, x.to(device, dtype_of(network))).argmax(1).cpu() == y).sum())
    return correct / len(samples)


def device_of(name: str | torch.device) -> torch.device:
    """The torch device of this name, refused if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"this machine cannot use the device '{name}': use cpu.") from None
    return device


def dtype_of(network: nn.Module) -> torch.dtype:
    """The floating-point type of a network's parameters."""
    return next(network.parameters()).dtype
