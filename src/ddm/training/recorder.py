"""Record the trajectory of the user's own training loop."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ddm.errors import InputError
from ddm.networks.state import state_of
from ddm.training.target import Loss, Target
from ddm.training.trajectory import Trajectory


class Recorder:
    """Records the trajectory of a network while the user's own loop trains it.

    ``Recorder(model)`` stores θ_0. Call ``snapshot()`` after each epoch and ``target()`` at the end.
    """

    def __init__(self, network: nn.Module, directory: Path | str | None = None) -> None:
        self.network = network
        self.trajectory = Trajectory(directory)
        self.trajectory.append(state_of(network), 0, 0.0)

    def snapshot(self, steps: int = 1, length: float = math.nan) -> None:
        """Store the parameters as they are now, after ``steps`` more optimizer steps.

        ``length`` is the sum of the learning rates of these steps. By default it is estimated from the trajectory.
        """
        state = state_of(self.network)
        if not all(tensor.isfinite().all() for tensor in state.values()):
            raise InputError(f"the parameters are not finite at snapshot {len(self.trajectory)}: lower the lr.")
        last_step, last_rate = self.trajectory.steps[-1], self.trajectory.cumulative_rates[-1]
        self.trajectory.append(state, last_step + steps, last_rate + length)

    def target(self, loss: Loss = F.cross_entropy, device: str | torch.device = "cpu") -> Target:
        """The target with the recorded trajectory."""
        return Target(self.network, self.trajectory, loss, device=device)
