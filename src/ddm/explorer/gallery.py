"""The gallery: which test samples the page shows, and on which of its pages."""

from __future__ import annotations

import numpy as np

from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.state import State, objectives_of

PAGE_SIZE = 24
"""Test samples on one page of the gallery."""


def matching_rows(run: ExploredRun, show: str) -> np.ndarray:
    """Positions of the test samples that a filter selects: all, wrong, or ``class NAME``.

    Without classes, wrong orders all samples by their loss, the largest first.
    """
    if show == "wrong" and not run.has_classes:
        largest: np.ndarray = run.rows[np.argsort(-run.losses, kind="stable")]
        return largest
    if show == "wrong":
        selected = run.predicted != run.labels
    elif show == "all":
        selected = np.ones(len(run.rows), dtype=bool)
    else:
        selected = run.labels == run.classes.index(show.removeprefix("class "))
    rows: np.ndarray = run.rows[selected]
    return rows


def page_rows(run: ExploredRun, state: State) -> np.ndarray:
    """Positions of the test samples on the open page."""
    rows: np.ndarray = matching_rows(run, state.show)[state.page * PAGE_SIZE : (state.page + 1) * PAGE_SIZE]
    return rows


def count_pages(run: ExploredRun, show: str) -> int:
    """Number of pages for a filter, at least 1."""
    return max(1, -(-len(matching_rows(run, show)) // PAGE_SIZE))


def first_state(run: ExploredRun) -> State:
    """The state of a new visit: the first wrong prediction, if there is one."""
    wrong, objective = matching_rows(run, "wrong"), next(iter(objectives_of(run.task.kind)))
    if len(wrong):
        return State(index=int(wrong[0]), show="wrong", objective=objective)
    return State(index=int(run.rows[0]), objective=objective)
