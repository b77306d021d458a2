"""Samples that visitors type: a text, or the values of a row, as one string that fits into an address."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddm.data.samples import Samples
from ddm.data.views import TableView
from ddm.errors import InputError
from ddm.explorer.explored_run import ExploredRun

MAX_CHARACTERS = 20_000
"""Maximum length of a typed sample."""


def restore(run: ExploredRun, typed: str) -> Samples:
    """The single sample that a visitor typed."""
    if run.data.encode is None:
        raise InputError("the data of this run cannot read what you type: choose a test sample.")
    if len(typed) > MAX_CHARACTERS:
        raise InputError(f"this is longer than {MAX_CHARACTERS:,} characters: shorten it.")
    if run.kind != "row":
        return run.data.encode(typed)
    try:
        values = json.loads(typed)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise InputError("the row in the address is damaged: enter its values again.")
    return run.data.encode(values)


def columns_of(run: ExploredRun, samples: Samples, row: int) -> list[list[str]]:
    """The names and values of those columns of a row that the network reads, to be edited."""
    if run.kind != "row" or run.data.encode is None:
        return []
    read, view = run.data.encode({}).view, samples.view
    assert isinstance(read, TableView)
    assert isinstance(view, TableView)
    values = view.frame.iloc[[row]]
    return [[name, "" if values[name].isna().iloc[0] else str(values[name].iloc[0])] for name in read.frame.columns]


def as_text(rows: Sequence[Sequence[Any]]) -> str:
    """The names and values of columns as one string."""
    return json.dumps({str(name): "" if value is None else str(value) for name, value in rows}, ensure_ascii=False)
