"""The address of a state: its query, as ``?index=3&objective=loss&remove=5/4``, and back.

Whoever shares an address shares what is seen. What cannot be read in it is left out, with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from ddm.errors import InputError
from ddm.explorer import upload
from ddm.explorer.opened import Opened
from ddm.explorer.state import OBJECTIVES, PER_CLASS, State

MOST_CHARACTERS = 60_000


def write(state: State) -> str:
    """The query of a state, with its question mark."""
    return "?" + urlencode(list(_parts(state)), safe="/")


def _parts(state: State) -> Iterator[tuple[str, str]]:
    if not state.picture:
        yield "index", str(state.index)
    elif len(state.picture) <= upload.MOST_TEXT:
        yield "picture", state.picture
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


def read(query: str, opened: Opened, start: State) -> tuple[State, list[str]]:
    """The state of a query, and a sentence for each part of it that means nothing here, for which ``start`` stands."""
    try:
        given = parse_qs(query[:MOST_CHARACTERS].removeprefix("?"), max_num_fields=1000)
    except ValueError:
        return start, ["The address has too many parts to be read."]
    state, said = start, []
    for name, values in given.items():
        try:
            if name in READERS:
                state = replace(state, **{name: READERS[name](opened, values)})
        except InputError as error:
            said.append(f"In the address: {error}")
    return state, said


def _index(opened: Opened, values: list[str]) -> int:
    count = len(opened.data.test)
    return _whole(values[-1], "test image", count)


def _picture(opened: Opened, values: list[str]) -> str:
    text = values[-1]
    if len(text) > upload.MOST_TEXT:
        raise InputError("the picture is too long to be read: drop it on the page instead.")
    upload.restore(text, opened.data.train)
    return text


def _class(opened: Opened, values: list[str]) -> str:
    if values[-1] not in opened.classes:
        raise InputError(f"there is no class '{_short(values[-1])}': choose one on the page.")
    return values[-1]


def _objective(opened: Opened, values: list[str]) -> str:
    if values[-1] not in OBJECTIVES:
        raise InputError(f"there is no objective '{_short(values[-1])}': use one of {', '.join(OBJECTIVES)}.")
    return values[-1]


def _remove(opened: Opened, values: list[str]) -> tuple[str, ...]:
    partition = opened.datamodel.partition
    numbers = []
    for value in dict.fromkeys(values):
        if len(value) > _LONG:
            raise InputError(f"there is no group '{_short(value)}': tick groups on the page.")
        numbers.append(partition.index(value))
    names = tuple(partition.names[number] for number in dict.fromkeys(numbers))
    partition.removal(names)
    for name in names:
        if not opened.usable(name):
            raise InputError(f"group {name} cannot be removed: {opened.datamodel.synset.stopped[name]}")
    return names


def _show(opened: Opened, values: list[str]) -> str:
    shown = values[-1]
    if shown not in ("all", "wrong") and shown.removeprefix("class ") not in opened.classes:
        raise InputError(f"there are no test images to show by '{_short(shown)}': use all, wrong or 'class NAME'.")
    return shown


def _page(opened: Opened, values: list[str]) -> int:
    return _whole(values[-1], "page", len(opened.data.test))


def _whole(text: str, what: str, count: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < count):
        raise InputError(f"there is no {what} '{_short(text)}': use a number from 0 to {count - 1}.")
    return int(text)


_LONG = 200


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


READERS: dict[str, Callable[[Opened, list[str]], Any]] = {
    "index": _index,
    "picture": _picture,
    "label": _class,
    "objective": _objective,
    "output": _class,
    "remove": _remove,
    "show": _show,
    "page": _page,
}
