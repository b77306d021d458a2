"""The state of a visit as the query of an address, as ``?index=3&objective=loss&remove=5/4``, and back.

So a visitor can share an address, and others see the same page. Parts that cannot be read are left out, each with a
sentence that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from ddm.errors import InputError
from ddm.explorer import typed, upload
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.state import PER_CLASS, State, objectives_of

MAX_QUERY_CHARACTERS = 60_000


def write_query(state: State) -> str:
    """The query of a state, with its question mark."""
    return "?" + urlencode(list(_parts(state)), safe="/")


def _parts(state: State) -> Iterator[tuple[str, str]]:
    own = "picture" if state.picture else "typed"
    if not state.is_own:
        yield "index", str(state.index)
    elif len(getattr(state, own)) <= upload.MAX_CHARACTERS:
        yield own, getattr(state, own)
        if state.label:
            yield "label", state.label
    yield "objective", state.objective
    if state.output and state.objective in PER_CLASS:
        yield "output", state.output
    for group in state.remove:
        yield "remove", group
    yield "show", state.show
    if state.page:
        yield "page", str(state.page)


def read_query(query: str, run: ExploredRun, start: State) -> tuple[State, list[str]]:
    """The state of a query, and a sentence for each part that is not valid. ``start`` replaces missing parts."""
    try:
        given = parse_qs(query[:MAX_QUERY_CHARACTERS].removeprefix("?"), max_num_fields=1000)
    except ValueError:
        return start, ["The address has too many parts to be read."]
    state, problems = start, []
    for name, values in given.items():
        try:
            if name in _READERS:
                state = replace(state, **{name: _READERS[name](run, values)})
        except InputError as error:
            problems.append(f"In the address: {error}")
    return state, problems


def _read_index(run: ExploredRun, values: list[str]) -> int:
    count = len(run.data.test)
    return _read_number(values[-1], f"test {run.kind}", count)


def _read_picture(run: ExploredRun, values: list[str]) -> str:
    text = values[-1]
    if len(text) > upload.MAX_CHARACTERS:
        raise InputError("the picture is too large for an address: drop it on the page instead.")
    upload.restore(text, run.data.train)
    return text


def _read_typed(run: ExploredRun, values: list[str]) -> str:
    typed.restore(run, values[-1])
    return values[-1]


def _read_class(run: ExploredRun, values: list[str]) -> str:
    if values[-1] not in run.classes:
        raise InputError(f"there is no class '{_shorten(values[-1])}': choose one on the page.")
    return values[-1]


def _read_objective(run: ExploredRun, values: list[str]) -> str:
    known = objectives_of(run.task.kind)
    if values[-1] not in known:
        raise InputError(f"there is no objective '{_shorten(values[-1])}': use one of {', '.join(known)}.")
    return values[-1]


def _read_remove(run: ExploredRun, values: list[str]) -> tuple[str, ...]:
    partition = run.datamodel.partition
    numbers = []
    for value in dict.fromkeys(values):
        if len(value) > _MAX_NAME:
            raise InputError(f"there is no group '{_shorten(value)}': tick groups on the page.")
        numbers.append(partition.index(value))
    names = tuple(partition.names[number] for number in dict.fromkeys(numbers))
    partition.removal(names)
    for name in names:
        if not run.can_remove(name):
            raise InputError(f"group {name} cannot be removed: {run.datamodel.distilled.stopped[name]}")
    return names


def _read_show(run: ExploredRun, values: list[str]) -> str:
    show = values[-1]
    named = show.removeprefix("class ") if run.has_classes else ""
    if show not in ("all", "wrong") and named not in run.classes:
        raise InputError(f"there is no filter '{_shorten(show)}': use all, wrong or 'class NAME'.")
    return show


def _read_page(run: ExploredRun, values: list[str]) -> int:
    return _read_number(values[-1], "page", len(run.data.test))


def _read_number(text: str, what: str, count: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < count):
        raise InputError(f"there is no {what} '{_shorten(text)}': use a number from 0 to {count - 1}.")
    return int(text)


_MAX_NAME = 200


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


_READERS: dict[str, Callable[[ExploredRun, list[str]], Any]] = {
    "index": _read_index,
    "picture": _read_picture,
    "typed": _read_typed,
    "label": _read_class,
    "objective": _read_objective,
    "output": _read_class,
    "remove": _read_remove,
    "show": _read_show,
    "page": _read_page,
}
