"""Comparison of a predicted removal with a real retraining. No Gradio here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.answers.objectives import Objective
from ddm.data.inputs import X, join
from ddm.errors import InputError
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.question import pose_question, resolve_objective
from ddm.explorer.removal import NO_GROUP, answers, logits_without
from ddm.explorer.state import State
from ddm.truth.retraining import NO_ROWS, group_rows


@dataclass(frozen=True, eq=False)
class Comparison:
    """The removal as the datamodel predicts it and as retraining shows it.

    Four models are compared: the model, the predicted model without the groups, the model retrained without the
    groups, and the model retrained with all groups.

    value:         of the objective on the sample, with all groups
    effects:       of the removal on it, predicted and exact; the exact one compares the two retrainings
    probabilities: ``(4, L)`` what the four models say for the sample
    scores:        of the four models on the test samples: the loss, and what the task is judged by
    """

    value: float
    effects: tuple[float, float]
    probabilities: np.ndarray
    scores: tuple[dict[str, float], ...]


def compare_with_retraining(run: ExploredRun, state: State) -> Comparison:
    """Retrain without all removed groups, and with all groups, and compare with the prediction."""
    if not state.remove:
        raise InputError(NO_GROUP)
    question = pose_question(run, state)
    exact = _retrain(run, state, join([question.x, run.data.test.batch(run.rows)[0]]))
    logits = torch.cat([question.logits, logits_without(run, state, question), exact[:, 0]])
    objective = resolve_objective(run, state, question)
    value, predicted = _measure(objective, logits[:2], question.logits, question.y)
    true, base = _measure(objective, logits[2:], exact[1, :1], question.y)
    scores = (run.scores(run.outputs), run.scores_without(state.remove), *(run.scores(row[1:]) for row in exact))
    return Comparison(value, (predicted - value, true - base), answers(run, question, logits), scores)


def estimate_seconds(run: ExploredRun, state: State) -> float | None:
    """Estimated seconds of a comparison. Cached retrainings take no time."""
    if run.retraining_seconds is None:
        return None
    return run.retraining_seconds * run.retraining().count_missing(_removed_rows(run, state))


def _retrain(run: ExploredRun, state: State, x: X) -> Tensor:
    """Logits ``(2, n, L)`` for inputs ``x (n, ...)`` of networks retrained without the removed groups, and with all."""
    removals = _removed_rows(run, state)
    if not run.retraining_lock.acquire(blocking=False):
        raise InputError("another visitor's retraining is running: try again when it has finished.")
    try:
        run.quota.check()
        return run.retraining().outputs(removals, 0, x)
    finally:
        run.retraining_lock.release()


def _removed_rows(run: ExploredRun, state: State) -> list[np.ndarray]:
    """The training samples to leave out of each retraining: those of the removed groups, and none."""
    partition = run.datamodel.partition
    return [*group_rows(partition, partition.mask(state.remove)[None]), NO_ROWS]


def _measure(objective: Objective, logits: Tensor, base: Tensor, y: Tensor) -> list[float]:
    """The objective's value for the logits ``(M, L)`` of M models, against the logits ``(1, L)`` of the base model."""
    values: list[float] = objective.values([logits[:, None]], base, y)[:, 0].tolist()
    return values
