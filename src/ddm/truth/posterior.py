"""The posterior of effects: predicted effects, corrected by retrainings.

Let f_o(S) be an output of the network that was trained with batch order o and without the groups in S. The datamodel
predicts its change as ê(S). The model of what it misses is Gaussian:

    f_o(S) − f_o(∅) = s·ê(S) + Σ_{κ∈S} (a_κ + b_κo) + c_o + ε_oS

    s     the size that predicted effects should have
    a_κ   what the prediction misses of the effect of group κ, in every batch order: variance ``group``
    b_κo  the same in batch order o only: variance ``order``
    c_o   what the training f_o(∅), to which all others of the order are compared, has by chance: variance ``base``
    ε_oS  the chance of one retraining, variance 1, and what groups do only together: u(u − 1) × ``together`` for a
          removal of u groups

All variances are in units of the chance of one retraining, so they are the same for every output, and the weights that
the posterior gives to retrainings depend on no question. A retraining without one group, in the target's batch order,
is the true effect of this group in this run: the posterior returns it unchanged.

A question about the model in general, in batch orders that nobody has trained yet (``GENERAL``), leaves out b, c and ε.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from ddm.compute.validation import is_finite

GENERAL = -1
"""The batch order of a question about the model in general."""

_INDEPENDENT = 30
"""Outputs of the same models go together, so all outputs count as this many independent ones."""

_SIZE_DEVIATION = 0.25
"""Standard deviation of s around 1 before any retraining was made."""

_LOG_DEVIATION = 1.5
"""Standard deviation of the logarithm of each variance around its usual value before any retraining was made."""

_LARGEST = 1e9
"""Largest size or variance in a file: more than ``fit_spread`` finds, and small enough for the covariance."""

_QUIET = 0.05
"""Share of the median mean square of residuals that is added to each, so that quiet samples do not dominate."""


@dataclass(frozen=True)
class Spread:
    """The parameters of the posterior, see above. The defaults are usual values, to which few retrainings are shrunk.

    scale:    s
    group:    variance of a_κ
    order:    variance of b_κo
    base:     variance of c_o
    together: variance that groups have together, for each of u(u − 1) pairs
    """

    scale: float = 1.0
    group: float = 5.0
    order: float = 2.5
    base: float = 0.5
    together: float = 0.3

    def to_dict(self) -> dict[str, float]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spread:
        """Read what ``to_dict`` wrote. Raises ValueError, KeyError or TypeError if it is damaged."""
        found = cls(**{field.name: values[field.name] for field in fields(cls)})
        variances = [value for name, value in asdict(found).items() if name != "scale"]
        if not all(is_finite(value) and 0 < value <= _LARGEST for value in variances):
            raise ValueError("the variances are not positive numbers")
        if not is_finite(found.scale) or abs(found.scale) > _LARGEST:
            raise ValueError("the size is not a number")
        return found

    def covariance(
        self, removed: np.ndarray, orders: np.ndarray, others: np.ndarray, other_orders: np.ndarray
    ) -> np.ndarray:
        """Covariance ``(M, N)`` of what is missed of the removals ``(M, K)`` and of ``others (N, K)``.

        A removal is a mask, or 1 − weight for each group. Each has a batch order, ``(M,)`` and ``(N,)``.
        """
        first, second = removed.astype(float), others.astype(float)
        shared = first @ second.T
        in_order = (orders[:, None] == other_orders) & (orders[:, None] != GENERAL)
        changed = np.outer(first.any(1), second.any(1))
        numbers, other_numbers = _number_rows(first, second)
        same = in_order & changed & (numbers[:, None] == other_numbers)
        size = np.abs(first).sum(1)
        chance = 1 + self.together * np.maximum(size * (size - 1), 0)
        total: np.ndarray = self.group * shared + in_order * (self.order * shared + changed * self.base)
        total += same * chance[:, None]
        return total

    def variance(self, removed: np.ndarray, order: int) -> np.ndarray:
        """The diagonal ``(M,)`` of the covariance of removals ``(M, K)`` in one batch order."""
        amounts = np.abs(removed.astype(float))
        shared, size, changed = np.square(amounts).sum(1), amounts.sum(1), amounts.any(1)
        found: np.ndarray = self.group * shared
        if order != GENERAL:
            chance = 1 + self.together * np.maximum(size * (size - 1), 0)
            found += self.order * shared + changed * (self.base + chance)
        return found


@dataclass(frozen=True, eq=False)
class Posterior:
    """The distribution of the effect of any removal, given R retrainings.

    removed: the groups ``(R, K)`` that each retraining left out, at least one
    orders:  its batch order ``(R,)``
    spread:  the parameters
    """

    removed: np.ndarray
    orders: np.ndarray
    spread: Spread

    def gains(self, removed: np.ndarray, order: int = 0) -> np.ndarray:
        """How much of each retraining's residual corrects the prediction of each removal ``(M, R)``."""
        weights: np.ndarray = cho_solve(self._factor, self._cross(removed, order).T).T
        return weights

    def variances(self, removed: np.ndarray, order: int = 0) -> np.ndarray:
        """Variance ``(M,)`` of what the corrected prediction of each removal still misses."""
        cross, own = self._cross(removed, order), self.spread.variance(removed, order)
        left: np.ndarray = own - (cross * cho_solve(self._factor, cross.T).T).sum(1)
        return np.where(left < 1e-9 * np.maximum(own, 1), 0.0, left)

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Leave-one-out errors: the matrix ``(R, R)`` that maps residuals to them, and their variances ``(R,)``."""
        own = np.diag(self._inverse)
        return self._inverse / own[:, None], 1 / own

    @cached_property
    def effective(self) -> float:
        """The number of independent errors that say as much about the size of errors as those of ``left_out``.

        It lies between 1 and R: retrainings that share groups also share what is missed.
        """
        own = np.sqrt(np.diag(self._inverse))
        return float(len(own) ** 2 / np.square(self._inverse / np.outer(own, own)).sum())

    def _cross(self, removed: np.ndarray, order: int) -> np.ndarray:
        return self.spread.covariance(removed, np.full(len(removed), order), self.removed, self.orders)

    @cached_property
    def _covariance(self) -> np.ndarray:
        return self.spread.covariance(self.removed, self.orders, self.removed, self.orders)

    @cached_property
    def _inverse(self) -> np.ndarray:
        return np.linalg.inv(self._covariance)

    @cached_property
    def _factor(self) -> tuple[np.ndarray, bool]:
        factor: tuple[np.ndarray, bool] = cho_factor(self._covariance)
        return factor


def fit_spread(removed: np.ndarray, orders: np.ndarray, changes: np.ndarray, predicted: np.ndarray) -> Spread:
    """The parameters with the largest posterior density, given what R retrainings changed.

    changes:   changes of the outputs of n samples ``(R, n, L)`` that retraining showed
    predicted: the changes ê that the datamodel predicted
    """
    usual = Spread()
    if not np.square(changes - predicted).any():
        return usual  # nothing was missed, so nothing is known about what is missed
    free = _free(removed, orders)
    grams = _grams(changes, predicted)

    def spread_at(point: np.ndarray) -> Spread:
        variances = dict(zip(free, np.exp(np.clip(point, -20, 20)).tolist(), strict=True))
        if "group" not in free:  # one batch order shows only the sum of both
            variances["group"] = variances["order"] * usual.group / usual.order
        spread = replace(usual, **variances)
        return replace(spread, scale=_best_scale(spread.covariance(removed, orders, removed, orders), grams))

    def badness(point: np.ndarray) -> float:
        spread = spread_at(point)
        covariance = spread.covariance(removed, orders, removed, orders)
        residual = _residual_gram(grams, spread.scale)
        misfit = np.log((np.linalg.inv(covariance) * residual).sum() / len(removed))
        likelihood = _INDEPENDENT / 2 * (np.linalg.slogdet(covariance)[1] + len(removed) * misfit)
        return float(likelihood + np.square((point - start) / _LOG_DEVIATION).sum() / 2)

    start = np.log([getattr(usual, name) for name in free])
    simplex = np.vstack([start, start + np.eye(len(start))])
    options = {"xatol": 0.02, "fatol": 1e-3, "maxiter": 600, "initial_simplex": simplex}
    return spread_at(minimize(badness, start, method="Nelder-Mead", options=options).x)


def _number_rows(*tables: np.ndarray) -> list[np.ndarray]:
    """A number for each row of each table; equal rows have equal numbers."""
    numbers: dict[bytes, int] = {}
    return [
        np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in table + 0.0], dtype=np.int64)  # no −0
        for table in tables
    ]


def _free(removed: np.ndarray, orders: np.ndarray) -> list[str]:
    """The variances on which these retrainings have something to say."""
    several = ["group"] if len(np.unique(orders)) > 1 else []
    together = ["together"] if removed.sum(1).max() > 1 else []
    return [*several, "order", "base", *together]


def _grams(changes: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean products ``(R, R)`` of changes with changes, changes with predictions, predictions with predictions.

    Each sample's outputs are divided by the size of its residuals, so that a few unstable samples do not decide.
    """
    square = np.square(changes - predicted).mean((0, 2))
    usual = np.median(square[square > 0])
    scale = np.sqrt(square + _QUIET * usual)[:, None]
    true, guess = ((values / scale).reshape(len(changes), -1) for values in (changes, predicted))
    count = true.shape[1]
    return true @ true.T / count, true @ guess.T / count, guess @ guess.T / count


def _residual_gram(grams: tuple[np.ndarray, np.ndarray, np.ndarray], scale: float) -> np.ndarray:
    true, cross, guess = grams
    residual: np.ndarray = true - scale * (cross + cross.T) + scale**2 * guess
    return residual


def _best_scale(covariance: np.ndarray, grams: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    """s by generalised least squares, shrunk towards 1."""
    inverse = np.linalg.inv(covariance)
    cross, guess = (float((inverse * gram).sum()) for gram in grams[1:])
    noise = float((inverse * _residual_gram(grams, 1.0)).sum()) / len(covariance)
    prior = noise / (_INDEPENDENT * _SIZE_DEVIATION**2)
    return (cross + prior) / (guess + prior) if guess + prior > 0 else 1.0
