"""The training data behind the model's answer: classes, groups and samples. No Gradio here."""

from __future__ import annotations

from ddm.answers.attribution import Attribution
from ddm.answers.shares import Shares
from ddm.answers.trace import Trace
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.question import Question, resolve_objective
from ddm.explorer.state import State

_MANY_PARAMETERS = 2**26
"""Parameters of all groups' models together, above which one Jacobian is faster than the models themselves."""


def trace_answer(run: ExploredRun, state: State, question: Question) -> Trace:
    """The class, then the group, with the strongest effect on the answer."""
    with run.lock:
        return run.datamodel.trace((question.x, question.y), resolve_objective(run, state, question))


def rank_groups(run: ExploredRun, state: State, question: Question) -> Attribution:
    """The effect of removing each group, strongest first."""
    datamodel, objective = run.datamodel, resolve_objective(run, state, question)
    many = len(datamodel.partition) * datamodel.target.flat.size > _MANY_PARAMETERS
    with run.lock:
        effects = datamodel.attribute(
            (question.x, question.y), objective, fast=many and datamodel.models.has_directions
        )
    return effects.sort()


def compute_shares(run: ExploredRun, state: State, question: Question, group: str) -> Shares:
    """How much each training sample of a group contributes to the group's effect."""
    with run.shares_lock:
        return run.datamodel.shares((question.x, question.y), group, resolve_objective(run, state, question))
