"""Attribution: y(p) ≈ W·p + b by weighted least squares (Eq. 8), over the perturbations of a design.

The effect of removing group κ is ``objective(without κ) − objective(with all) = −W_κ``: *positive = removing it raises
the value*. Tables, plots and files show effects; ``W`` is the paper's matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.compute.files import replacing, write_json
from ddm.errors import InputError
from ddm.plots import html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SIGN = "positive: removing the group raises the value; negative: removing it lowers the value"


@dataclass(frozen=True, eq=False)
class Attribution:
    """What removing each group does to an objective.

    names:    of the K groups
    matrix:   ``(K, O)`` effect of removal on each of O values
    errors:   ``(K, O)`` standard errors of these, NaN where the design leaves none
    b:        ``(O,)`` intercept of y(p) = W·p + b
    baseline: ``(O,)`` the values with all groups, as measured
    outputs:  a name for each value
    objective, meaning: what was measured
    signed:   whether groups are ranked by the size of the effect, either way
    focus:    the value that ``scores`` and ``top`` speak of
    sizes:    ``(K,)`` samples in each group
    models:   fine-tuned models this took
    """

    names: tuple[str, ...]
    matrix: np.ndarray
    errors: np.ndarray
    b: np.ndarray
    baseline: np.ndarray
    outputs: tuple[str, ...]
    objective: str
    meaning: str
    signed: bool
    focus: int
    sizes: np.ndarray
    models: int

    def __len__(self) -> int:
        return len(self.names)

    @property
    def W(self) -> np.ndarray:  # noqa: N802 - the paper's symbol
        """The paper's attribution matrix ``(K, O)``: the contribution of each group's presence, −effect."""
        return -self.matrix

    @property
    def scores(self) -> np.ndarray:
        """Effect of removing each group ``(K,)`` on the value in focus."""
        column: np.ndarray = self.matrix[:, self.focus]
        return column

    @property
    def measured(self) -> str:
        """What ``scores`` are effects on, in words."""
        return self.meaning.replace("each class", f"class {self.outputs[self.focus]}")

    def on(self, output: str | int) -> Attribution:
        """The same attribution with another value in focus, by name or number."""
        if str(output) in self.outputs:
            return replace(self, focus=self.outputs.index(str(output)))
        if re.fullmatch(r"[0-9]+", str(output)) and int(output) < len(self.outputs):
            return replace(self, focus=int(output))
        raise InputError(f"there is no value '{output}': use one of {', '.join(self.outputs)}.")

    def order(self) -> np.ndarray:
        """Groups ``(K,)`` from the strongest effect to the weakest; those that could not be measured come last."""
        key = np.abs(self.scores) if self.signed else self.scores
        ranked: np.ndarray = np.argsort(-np.where(np.isnan(key), -np.inf, key), kind="stable")
        return ranked

    def sort(self) -> Attribution:
        """The same groups, strongest effect first."""
        order = self.order()
        return replace(
            self,
            names=tuple(self.names[i] for i in order),
            matrix=self.matrix[order],
            errors=self.errors[order],
            sizes=self.sizes[order],
        )

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The ``count`` groups with the strongest effect, with it."""
        return [(self.names[i], float(self.scores[i])) for i in self.order()[:count]]

    def to_dataframe(self) -> pd.DataFrame:
        """A row a group: name, samples, and the effect on each value (with its standard error where known)."""
        import pandas as pd

        columns: dict[str, Any] = {"group": self.names, "samples": self.sizes}
        for column, output in enumerate(self.outputs):
            columns[f"effect on {output}"] = self.matrix[:, column]
            if not np.isnan(self.errors[:, column]).all():
                columns[f"± {output}"] = self.errors[:, column]
        return pd.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON values; what could not be measured is null."""
        return {
            "objective": self.objective,
            "meaning": self.meaning,
            "sign": SIGN,
            "outputs": list(self.outputs),
            "focus": self.outputs[self.focus],
            "baseline": _plain(self.baseline),
            "intercept": _plain(self.b),
            "models": self.models,
            "groups": [
                {
                    "group": self.names[i],
                    "samples": int(self.sizes[i]),
                    "effect": _plain(self.matrix[i]),
                    "standard_error": _plain(self.errors[i]),
                }
                for i in self.order()
            ],
        }

    def save(self, path: Path | str) -> None:
        """Write as JSON, or as a table if the path ends in .csv."""
        path = Path(path)
        if path.suffix == ".csv":
            with replacing(path) as temporary:
                self.sort().to_dataframe().to_csv(temporary, index=False)
        else:
            write_json(path, self.to_dict())

    def plot(self, count: int = 20) -> Figure:
        """The strongest effects as bars, raising to the right and lowering to the left."""
        from ddm.plots import effects

        return effects(self.sort(), count)

    def _repr_html_(self) -> str:
        ranked, shown = self.sort(), min(10, len(self))
        rows = zip(ranked.names, ranked.sizes, ranked.scores, strict=True)
        value = f"{self.baseline[self.focus]:.4g} with all groups"
        return (
            html.paragraph(f"Effect of removing each group on: {self.measured} ({value})")
            + html.table(
                ("group removed", "samples", "effect"),
                [(name, str(size), f"{score:+.4g}") for name, size, score in rows][:shown],
            )
            + html.paragraph(f"{shown} of {len(self)} groups; {SIGN}.")
        )

    def __repr__(self) -> str:
        strongest = ", ".join(f"{name} {value:+.3g}" for name, value in self.top(3))
        return f"Attribution of {self.measured} to {len(self):,} groups; strongest effects: {strongest} ({SIGN})"


@dataclass(frozen=True)
class Fit:
    """W ``(K, O)`` and b ``(O,)`` of y(p) = W·p + b, with standard errors of W (NaN where the design leaves none)."""

    W: np.ndarray
    b: np.ndarray
    errors: np.ndarray


def least_squares(present: np.ndarray, values: np.ndarray, beta: np.ndarray) -> Fit:
    """min over W, b of Σ_p β_p ‖y(p) − W·p − b‖², for p ``(M, K)``, y(p) ``(M, O)`` and β ``(M,)``.

    Row 0 is the target itself, p = 1.
    """
    if _leaves_one_out(present, beta):
        W = np.empty((present.shape[1], values.shape[1]))
        W[np.argmin(present[1:], axis=1)] = values[0] - values[1:]  # the same solution, without rounding
        return Fit(W, values[0] - W.sum(0), np.full_like(W, np.nan))
    root = np.sqrt(beta)[:, None]
    design = root * np.column_stack([present, np.ones(len(present))])
    count, unknowns = np.count_nonzero(beta), design.shape[1]
    if np.linalg.matrix_rank(design) < unknowns:
        raise InputError(
            f"{count - 1} perturbations do not tell {unknowns - 1} groups apart: use leave-one-out, or more of them."
        )
    solution, *_ = np.linalg.lstsq(design, root * values, rcond=None)
    errors = np.full_like(solution, np.nan)
    if count > unknowns:
        residuals = root * values - design @ solution
        variance = np.square(residuals).sum(0) / (count - unknowns)
        errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design))[:, None] * variance)
    return Fit(solution[:-1], solution[-1], errors[:-1])


def _leaves_one_out(present: np.ndarray, beta: np.ndarray) -> bool:
    """Whether each group is removed once, alone."""
    removed = 1 - present[1:]
    return bool(
        len(removed) == present.shape[1]
        and (removed.sum(0) == 1).all()
        and (removed.sum(1) == 1).all()
        and (beta > 0).all()
    )


def _plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
