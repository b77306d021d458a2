"""How far each checkpoint of a training is from the start and from the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddm.plots.colours import ACCENT, NEUTRAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddm.training.trajectory import Trajectory


def distances(trajectory: Trajectory) -> Figure:
    """Plot the distance of each checkpoint from θ_0 and to θ_τ."""
    from ddm.plots.picture import picture

    gone, left = trajectory.distances()
    figure = picture(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(trajectory.steps, gone, "o-", color=ACCENT, label="from the start θ_0")
    axes.plot(trajectory.steps, left, "s--", color=NEUTRAL, label="to the end θ_τ")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimizer steps (each mark is a checkpoint)")
    axes.set_ylabel("Euclidean distance of parameters\nand running statistics")
    axes.set_title(f"{len(trajectory)} checkpoints of the training", fontsize=10)
    axes.legend(frameon=False)
    return figure
