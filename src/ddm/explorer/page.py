"""The page: what happens when one of its components is used.

A control changes the visitor's state, and the parts of the page that depend on what changed are answered again. A
change that cannot be made leaves the state as it was and gets a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from ddm.errors import InputError
from ddm.explorer import address, answers, panels, phrases, pictures, upload
from ddm.explorer.background import Background
from ddm.explorer.layout import PREDICTED, UNKNOWN, Blocks, Components, Updates
from ddm.explorer.opened import Opened
from ddm.explorer.state import State

TICKS = 12
"""Groups offered to be ticked, strongest effect first; others are added by name."""

_READ_ADDRESS = "() => [null, null, window.location.search]"
_WRITE_ADDRESS = "(query) => { window.history.replaceState(null, '', window.location.pathname + query); }"

_MOST_WAITING = 200
"""Questions of all visitors that wait for an answer; who asks more is told that the page is busy."""

_MOST_VISITORS = 500
"""Visits that are remembered, the latest ones."""

_KEPT = 3600
"""Seconds that files of pictures are kept."""

_FORGOTTEN = "This visit is forgotten here, as many others came since: load the page again."

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

Effects = tuple[tuple[str, float], ...]
"""Groups with the effect of removing each on what is measured, strongest first."""


class Page:
    """What the components ``on`` a page do, for one opened run."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        title = f"ddm explore {opened.run.name}"
        with Blocks(title=title, analytics_enabled=False, delete_cache=(_KEPT // 10, _KEPT)) as self.blocks:
            self.on = Components(opened)
            self._connect()
        self.blocks.state_session_capacity = _MOST_VISITORS
        self.blocks.queue(max_size=_MOST_WAITING)

    def _connect(self) -> None:
        """What each control does to the state."""
        on, when = self.on, self._when
        when(on.show.input, lambda state, show: replace(state, show=show, page=0), [on.show], asks=False)
        when(on.back.click, lambda state: self._turned(state, -1), asks=False)
        when(on.forward.click, lambda state: self._turned(state, 1), asks=False)
        when(on.index.submit, self._numbered, [on.index])
        when(on.upload.upload, self._dropped, [on.upload])
        when(on.label.input, lambda state, name: replace(state, label=_but(UNKNOWN, name)), [on.label])
        when(on.objective.input, lambda state, name: replace(state, objective=name), [on.objective])
        when(on.output.input, lambda state, name: replace(state, output=_but(PREDICTED, name)), [on.output])
        when(on.ticks.input, lambda state, ticked: replace(state, remove=tuple(ticked)), [on.ticks], asks=False)
        when(on.another.input, _with_another, [on.another], asks=False)
        when(on.clear.click, lambda state: replace(state, remove=()), asks=False)
        self._then_rest(on.gallery.select(self._picked, [on.state, on.effects], on.answered, **_QUIET), asks=True)
        loaded = self.blocks.load(
            self._loaded, [on.state, on.effects, on.query], on.answered, js=_READ_ADDRESS, **_QUIET
        )
        self._then_rest(loaded, asks=True)
        on.save.click(self._saved, [on.state], [on.saved], **_QUIET)
        # Whoever asks while another's retraining is under way is told so, instead of waiting.
        on.compare.click(self._compared, [on.state], [on.comparison], concurrency_limit=None, **_QUIET)

    def _when(
        self, event: Callable[..., Any], change: Callable[..., State], inputs: Sequence[Any] = (), *, asks: bool = True
    ) -> None:
        """When ``event`` happens, ``change(state, values of inputs …)`` is the new state; ``asks`` another question."""

        def handler(state: State | None, effects: Effects, *values: Any) -> Updates:
            updates = self._changed(state, effects, lambda state: change(state, *values))
            # A control that was used keeps its value: it may have been used again meanwhile.
            return {part: value for part, value in updates.items() if part not in inputs or part in self.on.emptied}

        given = [self.on.state, self.on.effects, *inputs]
        self._then_rest(event(handler, given, self.on.answered, trigger_mode="always_last", **_QUIET), asks=asks)

    def _then_rest(self, done: Any, *, asks: bool) -> None:
        """After an answer: the address, and what takes longer."""
        done = done.then(None, [self.on.query], None, js=_WRITE_ADDRESS, **_QUIET)
        if asks:
            done.then(self._ordered, [self.on.state], [self.on.samples], **_QUIET)

    def _loaded(self, _state: None, _effects: Effects, query: str) -> Updates:
        """The state of the address that was opened."""
        state, said = address.read(query or "", self.opened, answers.start(self.opened))
        state = replace(state, page=min(state.page, answers.pages(self.opened, state.show) - 1))
        return self._answered(None, state, ()) | {self.on.notice: panels.notice(said)}

    def _picked(self, state: State | None, effects: Effects, chosen: gr.SelectData) -> Updates:
        """The image of the gallery that was clicked."""

        def change(state: State) -> State:
            rows = answers.shown(self.opened, state)
            if not (isinstance(chosen.index, int) and 0 <= chosen.index < len(rows)):
                raise InputError("there is no such picture on this page: choose one that is shown.")
            return replace(state, index=int(rows[chosen.index]), picture="", label="")

        return self._changed(state, effects, change)

    def _turned(self, state: State, by: int) -> State:
        last = answers.pages(self.opened, state.show) - 1
        return replace(state, page=min(max(state.page + by, 0), last))

    def _numbered(self, state: State, index: int | None) -> State:
        count = len(self.opened.data.test)
        if index is None or not 0 <= index < count:
            raise InputError(f"there is no test image {index}: use a number from 0 to {count - 1}.")
        return replace(state, index=int(index), picture="", label="")

    def _dropped(self, state: State, content: bytes | None) -> State:
        picture = upload.as_text(upload.decode(content or b"", self.opened.data.train))
        return replace(state, picture=picture, label="")

    def _changed(self, before: State | None, effects: Effects, change: Callable[[State], State]) -> Updates:
        """The answer to a changed state, or the sentence why it cannot be changed."""
        if before is None:
            return {self.on.notice: panels.notice([_FORGOTTEN])}
        try:
            after = change(before)
            return self._answered(before, after, effects) | {self.on.notice: panels.notice(_warnings(after))}
        except InputError as error:
            return {self.on.notice: panels.notice([phrases.refusal(error)]), self.on.upload: None}

    def _answered(self, before: State | None, state: State, effects: Effects) -> Updates:
        """Everything that differs between two states."""
        updates = {self.on.state: state, self.on.query: address.write(state)} | self.on.controls(state)
        if before is None or _question(before) != _question(state):
            found, effects = self._asked(state)
            updates |= found
        if before is None or (before.show, before.page) != (state.show, state.page):
            updates |= self._offered(state)
        if before is None or (_question(before), before.remove) != (_question(state), state.remove):
            updates |= self._removed(state, effects)
        return updates

    def _asked(self, state: State) -> tuple[Updates, Effects]:
        """What is behind the image's prediction."""
        opened, asked = self.opened, answers.ask(self.opened, state)
        trace, ranking = answers.trail(opened, state, asked), answers.ranking(opened, state, asked)
        effects = tuple(ranking.top(len(ranking)))
        focus = answers.focus(opened, state, asked)
        updates = {
            self.on.effects: effects,
            self.on.image: panels.image(opened, state, asked),
            self.on.trail: panels.trail(opened, state, asked, trace),
            self.on.strongest: panels.strongest(state, focus, ranking),
            self.on.samples: panels.members(
                opened, trace.group, f"Training samples of {trace.group} are being ordered …"
            ),
        }
        return updates, effects

    def _offered(self, state: State) -> Updates:
        """The page of test images."""
        rows, count = answers.shown(self.opened, state), len(answers.offered(self.opened, state.show))
        test, classes = self.opened.data.test, self.opened.classes
        images = [(pictures.pixels(test.raw[row]), f"{row}: {classes[int(test.labels[row])]}") for row in rows]
        first = state.page * answers.PAGE
        span = f"{first + 1} to {first + len(rows)} of {count}" if count else "No such test images."
        return {self.on.gallery: images, self.on.position: f"<p class='ddm-small'>{span}</p>"}

    def _removed(self, state: State, effects: Effects) -> Updates:
        """The model without the ticked groups."""
        opened, asked = self.opened, answers.ask(self.opened, state)
        return {
            self.on.ticks: gr.update(choices=self._choices(state, effects), value=list(state.remove)),
            self.on.bars: panels.bars(opened, state, answers.prediction(opened, state, asked)),
            self.on.test_set: panels.test_set(opened, state, answers.confusions(opened, state)),
            self.on.saved: "",
            self.on.comparison: "",
        }

    def _choices(self, state: State, effects: Effects) -> list[tuple[str, str]]:
        """The strongest groups and those ticked, with their effects."""
        usable = [(name, effect) for name, effect in effects if self.opened.usable(name)]
        shown = usable[:TICKS] + [pair for pair in usable[TICKS:] if pair[0] in state.remove]
        return [(f"{name}   {phrases.amount(state, effect)}", name) for name, effect in shown]

    def _ordered(self, state: State | None) -> str:
        """The training samples of the group found, by their shares."""
        if state is None:
            return ""
        asked = answers.ask(self.opened, state)
        group = answers.trail(self.opened, state, asked).group
        try:
            return panels.samples(self.opened, state, answers.shares(self.opened, state, asked, group))
        except InputError as error:
            return panels.members(self.opened, group, f"Training samples of {group}, in no order: {error}")

    def _saved(self, state: State | None) -> str:
        if state is None:
            return panels.notice([_FORGOTTEN])
        try:
            path = answers.save(self.opened, state)
        except InputError as error:
            return panels.notice([phrases.refusal(error)])
        where = f"{path.parent.name}/{path.name}"
        return (
            f"<p>Saved the model without {escape(', '.join(state.remove))} in the run's folder: "
            f"<code data-saved>{escape(where)}</code> (read it with ddm.networks.load).</p>"
        )

    def _compared(self, state: State | None) -> Iterator[str]:
        """Progress of the retraining, then what it shows."""
        if state is None:
            yield panels.notice([_FORGOTTEN])
            return
        try:
            expected = answers.seconds_of_comparing(self.opened, state)
            work = Background(lambda: answers.compare(self.opened, state))
            started = time.monotonic()
            while not work.wait(0.25):
                yield panels.progress(time.monotonic() - started, expected)
            yield panels.comparison(self.opened, state, answers.ask(self.opened, state), work.result())
        except InputError as error:
            yield panels.notice([phrases.refusal(error)])


def _question(state: State) -> State:
    """What of a state is asked, whatever is removed or offered."""
    return replace(state, remove=(), show="", page=0)


def _but(default: str, name: str) -> str:
    """What was chosen, empty where it is the default."""
    return "" if name == default else name


def _with_another(state: State, name: str) -> State:
    return replace(state, remove=tuple(dict.fromkeys((*state.remove, name))))


def _warnings(state: State) -> list[str]:
    if len(state.picture) > upload.MOST_TEXT:
        return ["This picture is too large for the address: it is forgotten when the page is loaded again."]
    return []
