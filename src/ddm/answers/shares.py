"""Shares: the samples of a group, ordered by what each contributes to the group's effect on a question.

The response is linear in the samples of a group, Δ_κ ∝ Σ_{i∈κ} (Ḡ + λI)⁻¹ ḡ_i, and so is the change of logits it
makes. An objective is not linear in the logits, so its change is divided along the straight way from the target's
logits f to those without the group, f + δ (integrated gradients, which add up to the whole):

    share_i ∝ c·J(Ḡ + λI)⁻¹ḡ_i,    c = ∫₀¹ ∇objective(f + sδ) ds,

scaled so that the shares add up to the group's effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddm.answers.attribution import SIGN
from ddm.answers.objectives import Objective
from ddm.curvature.directional import logits_along
from ddm.distil.response.solve import Responses
from ddm.errors import InputError
from ddm.plots import html
from ddm.training.target import Target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ddm.data.samples import Samples

_STEPS = 16
"""Points on the way at which an objective is differentiated."""


@dataclass(frozen=True, eq=False)
class Shares:
    """What each sample of a group contributes to an effect.

    group:  its name
    output: the value that is asked about
    effect: of removing the group on it
    rows:   positions of the samples in the training set ``(n_κ,)``, the largest share first
    values: their shares ``(n_κ,)``, which add up to the effect
    """

    group: str
    output: str
    effect: float
    rows: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def top(self, count: int = 5) -> list[tuple[int, float]]:
        """The ``count`` samples that contribute most, by position in the training set."""
        return [(int(row), float(value)) for row, value in zip(self.rows[:count], self.values[:count], strict=True)]

    def to_dataframe(self) -> pd.DataFrame:
        """A row a sample."""
        import pandas as pd

        return pd.DataFrame({"sample": self.rows, f"share of the effect on {self.output}": self.values})

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "group": self.group,
            "output": self.output,
            "effect": self.effect,
            "sign": SIGN,
            "samples": [{"sample": row, "share": value} for row, value in self.top(len(self))],
        }

    def plot(self, samples: Samples, count: int = 10) -> Figure:
        """Pictures of the samples that contribute most and least, of the training set ``samples``."""
        from ddm.plots import image_grid

        count = min(count, len(self))
        rows = [*range(count), *range(max(count, len(self) - count), len(self))]
        titles = [f"{self.rows[i]}: {self.values[i]:+.2g}" for i in rows]
        figure = image_grid(samples.batch(self.rows[rows])[0], titles, count)
        figure.suptitle(
            f"training samples of {self.group} with their shares of its effect on the {self.output}\n"
            f"({self.effect:+.3g} without the group), from the most to the least",
            fontsize=8,
            parse_math=False,
        )
        return figure

    def _repr_html_(self) -> str:
        shown = self.top(10)
        return (
            html.paragraph(
                f"Samples of group {self.group} by their share of its effect on: {self.output} "
                f"({self.effect:+.4g} without the group)"
            )
            + html.table(
                ("training sample", "share", "of the effect"),
                [
                    (str(row), f"{value:+.4g}", f"{value / self.effect:.1%}" if self.effect else "–")
                    for row, value in shown
                ],
            )
            + html.paragraph(f"{len(shown)} of {len(self)} samples, which add up to the effect; {SIGN}.")
        )

    def __repr__(self) -> str:
        first = ", ".join(f"{row} {value:+.2g}" for row, value in self.top(3))
        return (
            f"Shares of {len(self):,} training samples in the effect {self.effect:+.3g} of group {self.group} on "
            f"{self.output}; largest shares: {first} ({SIGN})"
        )


def shares(
    responses: Responses,
    objective: Objective,
    focus: int,
    effect: float,
    x: Tensor,
    y: Tensor,
    without: Tensor,
    rows: np.ndarray,
) -> np.ndarray:
    """What samples at ``rows`` share of the change from the target's logits to those ``without`` the group ``(n, L)``.

    focus, effect: which of the objective's values is asked about, and what removing the group does to it
    """
    target = responses.target
    base = target.outputs(x)
    slopes = _slopes(objective, focus, base, without, y)
    pull = _pulled_back(target, x, slopes)
    asked = responses.curvature.solve(pull[None])[0]
    raw = np.zeros(len(rows))
    for t, weight in zip(responses.checkpoints, responses.weights.tolist(), strict=True):
        raw += weight * _loss_along(responses, t, rows, asked)
    total = raw.sum()
    if not np.isfinite(total) or abs(total) < 1e-3 * np.abs(raw).sum():
        raise InputError("the samples of this group cancel each other out for this question: ask about another value.")
    found: np.ndarray = raw * (effect / total)
    return found


def _value(objective: Objective, focus: int, outputs: Tensor, base: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(objective.measure(outputs, base, y)).reshape(-1)[focus]


def _slopes(objective: Objective, focus: int, base: Tensor, without: Tensor, y: Tensor) -> Tensor:
    """c ``(n, L)``, the mean gradient of the objective on the way (midpoint rule)."""
    total = torch.zeros_like(base)
    for step in range(_STEPS):
        at = (base + (step + 0.5) / _STEPS * (without - base)).detach().requires_grad_()
        with torch.enable_grad():
            value = _value(objective, focus, at, base, y)
        if not value.requires_grad:
            raise InputError(
                f"'{objective.name}' counts, so samples have no shares of it: ask about loss, prediction or "
                f"probabilities."
            )
        total += torch.autograd.grad(value, at)[0] / _STEPS
    return total


def _pulled_back(target: Target, x: Tensor, slopes: Tensor) -> Tensor:
    """J(x)ᵀc ``(P,)``."""
    theta = target.theta.detach().requires_grad_()
    with torch.enable_grad():
        total = (target.flat(theta, target.fixed, x.to(target.device)) * slopes).sum()
    return torch.autograd.grad(total, theta)[0]


def _loss_along(responses: Responses, t: int, rows: np.ndarray, direction: Tensor) -> np.ndarray:
    """Derivative of each sample's loss at θ_t along a direction ``(P,)``: its part of the pull on the question."""
    target = responses.target
    theta, fixed = target.at(t)
    x, y = (tensor.to(target.device) for tensor in responses.samples.batch(rows))
    logits, change = logits_along(target, theta, fixed, x, direction)
    with torch.enable_grad():
        slopes = torch.autograd.grad(len(rows) * target.loss(logits.requires_grad_(), y), logits)[0]
    found: np.ndarray = (slopes * change).sum(1).double().cpu().numpy()
    return found
