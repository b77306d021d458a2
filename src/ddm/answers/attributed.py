"""From the outputs of models without groups to an attribution."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
from torch import Tensor

from ddm.answers.attribution import Attribution, least_squares
from ddm.answers.objectives import Objective
from ddm.errors import InputError
from ddm.groups.partition import Partition


def attributed(
    objective: Objective,
    outputs: Iterable[Tensor],
    labels: Tensor,
    partition: Partition,
    removed: np.ndarray,
    weights: np.ndarray,
    usable: np.ndarray,
    chosen: np.ndarray,
) -> Attribution:
    """W of ``objective`` for the ``chosen`` groups.

    outputs:          logits with all groups and then under M perturbations, some ``(m, n, L)`` after others
    labels:           of the n samples
    removed, weights: perturbations ``(M, K)`` and β ``(M,)``
    usable:           those of the chosen groups that can be removed; the others have no effect that could be measured
    """
    first = next(left := iter(outputs))
    baseline = first[0]
    values = _measured(objective, chain([first], left), baseline, labels.to(baseline.device))
    present = np.vstack([np.ones((1, len(usable))), ~removed[:, usable]])
    fit = least_squares(present, values, np.concatenate([[1.0], weights]))
    matrix, errors = np.full((2, len(partition), values.shape[1]), np.nan)
    matrix[usable], errors[usable] = 0.0 - fit.W, fit.errors  # not −W, which makes zero negative
    return Attribution(
        names=tuple(partition.names[k] for k in chosen),
        matrix=matrix[chosen],
        errors=errors[chosen],
        b=fit.b,
        baseline=values[0],
        outputs=objective.output_names(partition.classes, values.shape[1]),
        objective=objective.name,
        meaning=objective.meaning,
        signed=objective.signed,
        focus=int(baseline.softmax(1).mean(0).argmax()) if objective.per_class else 0,
        sizes=partition.sizes[chosen],
        models=len(removed),
    )


def _measured(objective: Objective, outputs: Iterable[Tensor], baseline: Tensor, labels: Tensor) -> np.ndarray:
    """Values ``(M, O)`` for the outputs of M models."""
    try:
        values = objective.values(outputs, baseline, labels)
    except (TypeError, RuntimeError, IndexError) as error:
        raise InputError(
            f"the objective '{objective.name}' must take (outputs, baseline outputs, labels) and return one or more "
            f"numbers; it said: {error}"
        ) from None
    measured: np.ndarray = values.cpu().numpy()
    if not np.isfinite(measured).all():
        raise InputError(f"the objective '{objective.name}' gave NaN or infinite values.")
    return measured
