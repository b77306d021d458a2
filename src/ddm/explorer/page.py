"""The page: how it responds to its controls.

A control changes the visitor's state, and the page updates the parts that depend on the change. An invalid change
leaves the state as it was and shows a sentence that says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr
import numpy as np

from ddm.data.shown import label_text
from ddm.errors import InputError
from ddm.explorer import (
    gallery,
    influences,
    panels,
    pictures,
    removal,
    retraining_check,
    sentences,
    shown,
    typed,
    upload,
)
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.layout import PREDICTED, UNKNOWN, Blocks, Components, Updates
from ddm.explorer.query import read_query, write_query
from ddm.explorer.question import class_in_focus, pose_question
from ddm.explorer.state import State

TICKS = 12
"""Groups with a tick box, strongest effect first. Visitors add others by name."""

_READ_ADDRESS = "() => [null, null, window.location.search]"
_WRITE_ADDRESS = "(query) => { window.history.replaceState(null, '', window.location.pathname + query); }"

_MAX_QUEUE = 200
"""Maximum number of waiting requests of all visitors. Further visitors are told that the page is busy."""

_MAX_VISITS = 500
"""Maximum number of visits whose state the server holds; the oldest are dropped."""

_FILE_SECONDS = 3600
"""Seconds after which files of pictures are deleted."""

_FORGOTTEN = "The server has dropped this visit, because many others came since: reload the page."

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

Effects = tuple[tuple[str, str], ...]
"""Groups with the effect of removing each in words, strongest first."""


class Page:
    """The page of one run: its components, ``on`` the page, and what each does."""

    def __init__(self, run: ExploredRun) -> None:
        self.run = run
        title = f"ddm explore {run.folder.name}"
        cache = (_FILE_SECONDS // 10, _FILE_SECONDS)
        with Blocks(title=title, analytics_enabled=False, delete_cache=cache) as self.blocks:
            self.on = Components(run)
            self._connect_controls()
        self.blocks.state_session_capacity = _MAX_VISITS
        self.blocks.queue(max_size=_MAX_QUEUE)

    def _connect_controls(self) -> None:
        """Register how each control changes the state."""
        on, connect = self.on, self._connect
        connect(on.show.input, lambda state, show: replace(state, show=show, page=0), [on.show], asks=False)
        connect(on.back.click, lambda state: self._turn_page(state, -1), asks=False)
        connect(on.forward.click, lambda state: self._turn_page(state, 1), asks=False)
        connect(on.index.submit, self._choose_number, [on.index])
        connect(on.upload.upload, self._choose_upload, [on.upload])
        connect(on.snippets.input, self._choose_number, [on.snippets])
        connect(on.ask.click, self._choose_typed, [on.text, on.columns])
        connect(on.label.input, lambda state, name: replace(state, label=_unless(UNKNOWN, name)), [on.label])
        connect(on.objective.input, lambda state, name: replace(state, objective=name), [on.objective])
        connect(on.output.input, lambda state, name: replace(state, output=_unless(PREDICTED, name)), [on.output])
        connect(on.ticks.input, lambda state, ticked: replace(state, remove=tuple(ticked)), [on.ticks], asks=False)
        connect(on.another.input, _remove_another, [on.another], asks=False)
        connect(on.clear.click, lambda state: replace(state, remove=()), asks=False)
        picked = on.gallery.select(self._choose_from_gallery, [on.state, on.effects], on.outputs, **_QUIET)
        self._then_update_rest(picked, asks=True)
        loaded = self.blocks.load(self._load, [on.state, on.effects, on.query], on.outputs, js=_READ_ADDRESS, **_QUIET)
        self._then_update_rest(loaded, asks=True)
        on.save.click(self._save, [on.state], [on.saved], **_QUIET)
        # No limit: visitors who ask during another's retraining get an answer at once instead of waiting.
        on.compare.click(self._compare, [on.state], [on.comparison], concurrency_limit=None, **_QUIET)

    def _connect(
        self, event: Callable[..., Any], change: Callable[..., State], inputs: Sequence[Any] = (), *, asks: bool = True
    ) -> None:
        """On ``event``, replace the state by ``change(state, *values of inputs)``.

        asks: the change asks a new question, so that the training samples are ordered again
        """

        def handler(state: State | None, effects: Effects, *values: Any) -> Updates:
            updates = self._change_state(state, effects, lambda state: change(state, *values))
            # The used control is not updated: the visitor may have used it again in the meantime.
            return {
                part: value
                for part, value in updates.items()
                if part not in inputs or part in self.on.emptied_after_use
            }

        arguments = [self.on.state, self.on.effects, *inputs]
        done = event(handler, arguments, self.on.outputs, trigger_mode="always_last", **_QUIET)
        self._then_update_rest(done, asks=asks)

    def _then_update_rest(self, done: Any, *, asks: bool) -> None:
        """After an answer, update the address and, for a new question, the slower order of training samples."""
        done = done.then(None, [self.on.query], None, js=_WRITE_ADDRESS, **_QUIET)
        if asks:
            done.then(self._order_samples, [self.on.state], [self.on.samples], **_QUIET)

    def _load(self, _state: None, _effects: Effects, query: str) -> Updates:
        """Show the state of the page's address."""
        state, problems = read_query(query or "", self.run, gallery.first_state(self.run))
        state = replace(state, page=min(state.page, gallery.count_pages(self.run, state.show) - 1))
        return self._updates(None, state, ()) | {self.on.notice: panels.notice(problems)}

    def _choose_from_gallery(self, state: State | None, effects: Effects, chosen: gr.SelectData) -> Updates:
        """Ask about the image of the gallery that was clicked."""

        def change(state: State) -> State:
            rows = gallery.page_rows(self.run, state)
            if not (isinstance(chosen.index, int) and 0 <= chosen.index < len(rows)):
                raise InputError("there is no such picture on this page: choose one that is shown.")
            return replace(state, index=int(rows[chosen.index]), picture="", typed="", label="")

        return self._change_state(state, effects, change)

    def _turn_page(self, state: State, by: int) -> State:
        last = gallery.count_pages(self.run, state.show) - 1
        return replace(state, page=min(max(state.page + by, 0), last))

    def _choose_number(self, state: State, index: int | None) -> State:
        count = len(self.run.data.test)
        if index is None or not 0 <= index < count:
            raise InputError(f"there is no test {self.run.kind} {index}: use a number from 0 to {count - 1}.")
        return replace(state, index=int(index), picture="", typed="", label="")

    def _choose_upload(self, state: State, content: bytes | None) -> State:
        picture = upload.as_text(upload.decode(content or b"", self.run.data.train))
        return replace(state, picture=picture, typed="", label="")

    def _choose_typed(self, state: State, text: str, columns: Sequence[Sequence[Any]]) -> State:
        """Ask about a text or a row of the visitor's own."""
        own = typed.as_text(columns) if self.run.kind == "row" else text.strip()
        if not own:
            raise InputError("there is no text yet: type one first.")
        typed.restore(self.run, own)
        return replace(state, typed=own, picture="", label="")

    def _change_state(self, before: State | None, effects: Effects, change: Callable[[State], State]) -> Updates:
        """Updates for a changed state, or a notice that says why the change is invalid."""
        if before is None:
            return {self.on.notice: panels.notice([_FORGOTTEN])}
        try:
            after = change(before)
            return self._updates(before, after, effects) | {self.on.notice: panels.notice(_warnings(after))}
        except InputError as error:
            return {self.on.notice: panels.notice([sentences.refusal(error)]), self.on.upload: None}

    def _updates(self, before: State | None, state: State, effects: Effects) -> Updates:
        """Updates of every component that differs between two states."""
        updates = {self.on.state: state, self.on.query: write_query(state)} | self.on.control_values(state)
        if before is None or _question_part(before) != _question_part(state):
            answer, effects = self._update_answer(state)
            updates |= answer
        if before is None or (before.show, before.page) != (state.show, state.page):
            updates |= self._update_gallery(state)
        elif self.run.kind != "image":
            updates[self.on.snippets] = self._chosen_snippet(state)
        if before is None or (_question_part(before), before.remove) != (_question_part(state), state.remove):
            updates |= self._update_removal(state, effects)
        return updates

    def _update_answer(self, state: State) -> tuple[Updates, Effects]:
        """The training data behind the prediction, and the effects of all groups."""
        run, question = self.run, pose_question(self.run, state)
        trace, ranking = influences.trace_answer(run, state, question), influences.rank_groups(run, state, question)
        effects = tuple(
            (group, sentences.signed_effect(state, float(effect)) + sentences.interval(ranking, i))
            for i, (group, effect) in enumerate(zip(ranking.names, ranking.scores, strict=True))
        )
        updates = {
            self.on.effects: effects,
            self.on.image: panels.image(run, state, question),
            self.on.trail: panels.trail(run, state, question, trace),
            self.on.strongest: panels.strongest(state, class_in_focus(run, state, question), ranking),
            self.on.samples: panels.members(run, trace.group, f"Ordering the training samples of {trace.group} …"),
            self.on.columns: typed.columns_of(run, question.samples, question.row),
        }
        return updates, effects

    def _update_gallery(self, state: State) -> Updates:
        rows, count = gallery.page_rows(self.run, state), len(gallery.matching_rows(self.run, state.show))
        first = state.page * gallery.PAGE_SIZE
        none = f"No test {self.run.kind} matches this filter."
        span = f"{first + 1} to {first + len(rows)} of {count}" if count else none
        return self._gallery(rows, state) | {self.on.position: f"<p class='ddm-small'>{span}</p>"}

    def _gallery(self, rows: np.ndarray, state: State) -> Updates:
        """Thumbnails of images, or a list of snippets."""
        test = self.run.data.test
        if self.run.kind == "image":
            images = [(pictures.enlarge(shown.pixels(test, row)), f"{row}: {label_text(test, row)}") for row in rows]
            return {self.on.gallery: images}
        lines = [(f"{row}: {shown.line(test, int(row))}", int(row)) for row in rows]
        return {self.on.snippets: gr.update(choices=lines, value=self._chosen_snippet(state))}

    def _chosen_snippet(self, state: State) -> int | None:
        """The number of the test sample in question; None if the list does not show it."""
        shown_here = not state.is_own and state.index in gallery.page_rows(self.run, state)
        return state.index if shown_here else None

    def _update_removal(self, state: State, effects: Effects) -> Updates:
        """The model without the ticked groups."""
        run, question = self.run, pose_question(self.run, state)
        return {
            self.on.ticks: gr.update(choices=self._tick_choices(state, effects), value=list(state.remove)),
            self.on.bars: panels.bars(run, state, removal.predict(run, state, question)),
            self.on.test_set: panels.tested(run, state),
            self.on.saved: "",
            self.on.comparison: "",
        }

    def _tick_choices(self, state: State, effects: Effects) -> list[tuple[str, str]]:
        """The strongest groups and the ticked ones, with their effects."""
        usable = [(name, words) for name, words in effects if self.run.can_remove(name)]
        shown = usable[:TICKS] + [pair for pair in usable[TICKS:] if pair[0] in state.remove]
        return [(f"{name}   {words}", name) for name, words in shown]

    def _order_samples(self, state: State | None) -> str:
        """The training samples of the strongest group, ordered by their shares of its effect."""
        if state is None:
            return ""
        question = pose_question(self.run, state)
        group = influences.trace_answer(self.run, state, question).group
        try:
            return panels.samples(self.run, state, influences.compute_shares(self.run, state, question, group))
        except InputError as error:
            return panels.members(self.run, group, f"Training samples of {group}, in no order: {error}")

    def _save(self, state: State | None) -> str:
        if state is None:
            return panels.notice([_FORGOTTEN])
        try:
            path = removal.save_model(self.run, state)
        except InputError as error:
            return panels.notice([sentences.refusal(error)])
        where = f"{path.parent.name}/{path.name}"
        return (
            f"<p>Saved the model without {escape(', '.join(state.remove))} in the run's folder: "
            f"<code data-saved>{escape(where)}</code> (read it with ddm.networks.load).</p>"
            f"{panels.rough(self.run.beyond(state.remove))}"
        )

    def _compare(self, state: State | None) -> Iterator[str]:
        """Progress of the retraining, then the comparison."""
        if state is None:
            yield panels.notice([_FORGOTTEN])
            return
        try:
            expected = retraining_check.estimate_seconds(self.run, state)
            worker = ThreadPoolExecutor(1)
            future = worker.submit(retraining_check.compare_with_retraining, self.run, state)
            worker.shutdown(wait=False)
            started = time.monotonic()
            while not wait([future], 0.25).done:
                yield panels.progress(time.monotonic() - started, expected)
            yield panels.comparison(self.run, state, pose_question(self.run, state), future.result())
        except InputError as error:
            yield panels.notice([sentences.refusal(error)])


def _question_part(state: State) -> State:
    """The part of a state that decides the question, without the removal and the gallery."""
    return replace(state, remove=(), show="", page=0)


def _unless(default: str, name: str) -> str:
    """The chosen name, or empty for the default."""
    return "" if name == default else name


def _remove_another(state: State, name: str) -> State:
    return replace(state, remove=tuple(dict.fromkeys((*state.remove, name))))


def _warnings(state: State) -> list[str]:
    if max(len(state.picture), len(state.typed)) > upload.MAX_CHARACTERS:
        what = "picture" if state.picture else "sample"
        return [f"This {what} is too large for the address: it is lost when you reload the page."]
    return []
