"""Shares: how much each sample of a group contributes to the group's effect on a question.

A response with the group's own curvature left in is linear in the samples of the group, d_κ = Σ_{i∈κ} (Ḡ + cΛ)⁻¹ ḡ_i,
and so is the resulting change of the logits. An objective is not linear in the logits. Integrated gradients split its
change along the straight line from the target's logits f to the logits without the group, f + δ, into parts that add up
to the total:

    share_i ∝ s·J(Ḡ + cΛ)⁻¹ḡ_i,    s = ∫₀¹ ∇objective(f + rδ) dr,

scaled so that the shares add up to the group's effect. The effect itself leaves the own curvature out, which changes
the size of a share more than the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddm.answers.attribution import SIGN, attribute
from ddm.answers.objectives import Objective, ObjectiveLike, resolve
from ddm.answers.question import Batch
from ddm.answers.saving import save
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.curvature.directional import logits_along
from ddm.data.inputs import X, at_once
from ddm.data.samples import Samples
from ddm.data.shown import describe, is_image
from ddm.distil.response.solve import Responses
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.plots import html, units
from ddm.training.target import Target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_STEPS = 16
"""Number of points on the line at which the objective is differentiated."""


@dataclass(frozen=True, eq=False)
class Shares:
    """The share of each sample of a group in the group's effect.

    group:    name of the group
    output:   the value that the effect is on, in words
    effect:   effect of removing the group on this value
    rows:     positions of the samples in the training set ``(n_κ,)``, the largest share first
    values:   shares of these samples ``(n_κ,)``, which add up to the effect
    samples:  the training set
    fraction: True if the value is a fraction, whose changes people read in points
    """

    group: str
    output: str
    effect: float
    rows: np.ndarray
    values: np.ndarray
    samples: Samples
    fraction: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def top(self, count: int = 5) -> list[tuple[int, float]]:
        """The ``count`` samples that contribute most: position in the training set and share."""
        return [(int(row), float(value)) for row, value in zip(self.rows[:count], self.values[:count], strict=True)]

    def text(self, share: float) -> str:
        """A share, or the effect, with its sign and unit."""
        return units.change_text(share, self.fraction, 2)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per sample: its position in the training set, its name, and its share."""
        import pandas as pd

        columns: dict[str, Any] = {"sample": self.rows, "id": self.ids}
        return pd.DataFrame(columns | {f"share of the effect on {self.output}": self.values})

    @property
    def ids(self) -> list[str]:
        """The name of each sample, such as its path."""
        return [self.samples.id(int(row)) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {
            "group": self.group,
            "output": self.output,
            "effect": self.effect,
            "sign": SIGN,
            "samples": [
                {"sample": row, "id": one, "share": value}
                for one, (row, value) in zip(self.ids, self.top(len(self)), strict=True)
            ],
        }

    def save(self, path: Path | str) -> None:
        """Write as a table if the path ends in .csv or .parquet, else as JSON."""
        save(self, path)

    def plot(self, samples: Samples | None = None, count: int = 10) -> Figure:
        """Images of the samples that contribute most and least.

        samples: the training set to take them from; by default the one that the shares were computed with
        """
        from ddm.plots import image_grid

        samples = self.samples if samples is None else samples
        if not is_image(samples):
            raise InputError("only images can be plotted: use to_dataframe() for shares of other samples.")
        count = min(count, len(self))
        rows = [*range(count), *range(max(count, len(self) - count), len(self))]
        titles = [f"{self.rows[i]}: {units.change_number(self.values[i], self.fraction, 2)}" for i in rows]
        figure = image_grid(samples.tensors(self.rows[rows])[0], titles, count)
        figure.suptitle(
            f"training samples of {self.group} by their share\nof its effect on the {self.output}\n"
            f"({self.text(self.effect)} without the group)",
            fontsize=8,
            parse_math=False,
        )
        return figure

    def _repr_html_(self) -> str:
        shown = self.top(10)
        return (
            html.paragraph(
                f"Samples of group {self.group} by their share of its effect on: {self.output} "
                f"({self.text(self.effect)} without the group)"
            )
            + html.table(
                ("training sample", "share", "of the effect", *([] if is_image(self.samples) else ["what it is"])),
                [self._cells(row, value) for row, value in shown],
            )
            + html.paragraph(f"{len(shown)} of {len(self)} samples, which add up to the effect; {SIGN}.")
        )

    def _cells(self, row: int, value: float) -> tuple[str, ...]:
        """Name, share, part of the effect and, if it is no image, the words of a sample."""
        part = f"{value / self.effect:.1%}" if self.effect else "–"
        named = str(row) if self.samples.ids is None else f"{row}, {self.samples.ids[row]}"
        cells = (named, self.text(value), part)
        return cells if is_image(self.samples) else (*cells, describe(self.samples, row))

    def __repr__(self) -> str:
        first = ", ".join(f"{row} {self.text(value)}" for row, value in self.top(3))
        return (
            f"Shares of {len(self):,} training samples in the effect {self.text(self.effect)} of group {self.group} on "
            f"{self.output}; largest shares: {first} ({SIGN})"
        )


def find_shares(
    models: Models,
    partition: Partition,
    group: int,
    batch: Batch,
    objective: ObjectiveLike,
    output: str | None,
    responses: Callable[[], Responses],
) -> Shares:
    """The shares of a group's samples in its effect on an objective.

    output:    the value in question, for objectives with several; None is the default one
    responses: computes the responses of the target; called after all cheap checks
    """
    removed = designs.leave_one_out(len(partition))[group : group + 1]
    models.check_usable(removed[0])
    effects = attribute(models, partition, removed, batch, objective, chosen=np.array([group]))
    effects = effects if output is None else effects.on(output)
    effect, rows = float(effects.scores[0]), partition.rows(group)
    without = models.outputs(removed, batch[0])[0]
    slopes = _slopes(resolve(objective, models.target.task), effects.focus, models.target, batch, without)
    found = responses()
    values = _scale(_contributions(found, batch[0], slopes, rows), effect)
    order = np.argsort(-values * np.sign(effect), kind="stable")
    ranked = rows[order], values[order]
    return Shares(partition.names[group], effects.measured, effect, *ranked, found.samples, effects.fraction)


def _contributions(responses: Responses, x: X, slopes: Tensor, rows: np.ndarray) -> np.ndarray:
    """c·J(Ḡ + Λ)⁻¹ḡ_i ``(n_κ,)`` of the samples at ``rows``, for c ``(n, L)``, up to a common factor."""
    target, pulled = responses.target, _pulled_back(responses.target, x, slopes)
    direction = responses.curvature.solve(pulled[None], transposed=True)[0]
    direction = direction / responses.weights.total(target)
    total = np.zeros(len(rows))
    for position, t in enumerate(responses.checkpoints):
        total += _loss_along(responses, t, rows, responses.weights.at(target, position).to(direction) * direction)
    return total


def _scale(contributions: np.ndarray, effect: float) -> np.ndarray:
    """Contributions ``(n_κ,)`` scaled to add up to the effect."""
    total = contributions.sum()
    if not np.isfinite(total) or abs(total) < 1e-3 * np.abs(contributions).sum():
        raise InputError("the samples of this group cancel each other out for this question: ask about another value.")
    scaled: np.ndarray = contributions * (effect / total)
    return scaled


def _value(objective: Objective, focus: int, outputs: Tensor, base: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(objective.measure(outputs, base, y)).reshape(-1)[focus]


def _slopes(objective: Objective, focus: int, target: Target, batch: Batch, without: Tensor) -> Tensor:
    """c ``(n, L)``: mean gradient of the objective on the line to the logits ``without`` the group (midpoint rule)."""
    base, y = target.outputs(batch[0]), objective.labels_on(batch[1], without.device)
    total = torch.zeros_like(base)
    for step in range(_STEPS):
        at = (base + (step + 0.5) / _STEPS * (without - base)).detach().requires_grad_()
        with torch.enable_grad():
            value = _value(objective, focus, at, base, y)
        if not value.requires_grad:
            raise InputError(
                f"'{objective.name}' has no gradient, so it cannot be split among samples: ask about loss, prediction "
                "or probabilities."
            )
        total += torch.autograd.grad(value, at)[0] / _STEPS
    return total


def _pulled_back(target: Target, x: X, slopes: Tensor) -> Tensor:
    """J(x)ᵀc ``(P,)``."""
    theta = target.theta.detach().requires_grad_()
    with torch.enable_grad():
        total = (target.flat(theta, target.fixed, x.to(target.device)) * slopes).sum()
    return torch.autograd.grad(total, theta)[0]


def _loss_along(responses: Responses, t: int, rows: np.ndarray, direction: Tensor) -> np.ndarray:
    """Derivative of each sample's loss at θ_t along a direction ``(P,)``: its contribution at checkpoint t."""
    target = responses.target
    theta, fixed = target.at(t)
    found, samples = [], responses.samples
    for x, y in samples.batches(torch.as_tensor(rows).split(at_once(len(rows), samples.bytes_each))):
        x, y = x.to(target.device), y.to(target.device)
        logits, change = logits_along(target, theta, fixed, x, direction)
        with torch.enable_grad():
            slopes = torch.autograd.grad(target.loss.each(logits.requires_grad_(), y).sum(), logits)[0]
        found.append((slopes * change).sum(1).double().cpu())
    derivatives: np.ndarray = torch.cat(found).numpy()
    return derivatives
