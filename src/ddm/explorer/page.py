"""The page: Gradio's components, and what happens when one is used.

A control changes the visitor's state, and the parts of the page that depend on what changed are answered again. A
change that cannot be made leaves the state as it was and gets a sentence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from ddm.errors import InputError
from ddm.explorer import address, answers, panels, phrases, pictures, upload
from ddm.explorer.opened import Opened
from ddm.explorer.state import OBJECTIVES, PER_CLASS, State
from ddm.words import trust

TICKS = 12
"""Groups offered to be ticked, strongest effect first; others are added by name."""

_UNKNOWN, _PREDICTED = "unknown", "the predicted one"

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

Updates = dict[Any, Any]
"""New values of components."""


class Blocks(gr.Blocks):
    """Gradio's, without what it forgets to forget: each version of a control that a visitor has used."""

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False
    ) -> list[Any]:
        """The values of controls, as Gradio finds them."""
        found: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        if state is not None:
            for number in state.blocks_config.blocks.keys() - self.blocks.keys():
                del state.blocks_config.blocks[number]
                state.config_values.pop(number, None)
        return found


class Page:
    """The components of a page and what they do, for one opened run."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        title = f"ddm explore {opened.run.name}"
        with Blocks(title=title, analytics_enabled=False, delete_cache=(_KEPT // 10, _KEPT)) as self.blocks:
            self._lay_out()
            self._connect()
        self.blocks.state_session_capacity = _MOST_VISITORS
        self.blocks.queue(max_size=_MOST_WAITING)

    def _lay_out(self) -> None:
        self.state, self.effects = gr.State(None), gr.State(())
        self.query = gr.Textbox(visible="hidden", elem_id="ddm-query")
        gr.HTML(
            f"<h1>Which training data made the model do this?</h1><p class='ddm-trust'>Run "
            f"{escape(self.opened.run.name)}. {escape(trust(self.opened.datamodel.audited))}</p>",
            padding=False,
        )
        self.notice = gr.HTML(elem_id="ddm-notice", padding=False)
        with gr.Row(elem_id="ddm-columns"):
            with gr.Column(scale=2, min_width=320):
                self._lay_out_choice()
            with gr.Column(scale=3, min_width=320):
                self._lay_out_answers()
                self._lay_out_removal()

    def _lay_out_choice(self) -> None:
        gr.HTML("<h2>1 · Choose an image</h2>", padding=False)
        kinds = [("wrong predictions", "wrong"), ("all", "all")]
        shows = [*kinds, *((f"class {name}", f"class {name}") for name in self.opened.classes)]
        self.show = gr.Dropdown(shows, label="Test images", elem_id="ddm-show")
        self.gallery = gr.Gallery(
            columns=6,
            height="auto",
            allow_preview=False,
            show_label=False,
            format="png",
            buttons=[],
            interactive=False,
            elem_id="ddm-gallery",
        )
        self.position = gr.HTML(elem_id="ddm-position", padding=False)
        with gr.Row():
            self.back = gr.Button("← Back", size="sm", min_width=80, elem_id="ddm-back")
            self.forward = gr.Button("More →", size="sm", min_width=80, elem_id="ddm-forward")
        self.index = gr.Number(label="Or by number, then Enter", precision=0, minimum=0, elem_id="ddm-index")
        self.upload = gr.File(label="Or drop a picture of your own", type="binary", height=130, elem_id="ddm-upload")
        self.label = gr.Dropdown(
            [_UNKNOWN, *self.opened.classes], label="Class of your picture", visible=False, elem_id="ddm-label"
        )

    def _lay_out_answers(self) -> None:
        self.image = _panel("ddm-image")
        gr.HTML("<h2>2 · See what is behind it</h2>", padding=False)
        with gr.Row():
            names = [(words, name) for name, words in OBJECTIVES.items()]
            self.objective = gr.Dropdown(names, label="What is measured", min_width=220, elem_id="ddm-objective")
            self.output = gr.Dropdown(
                [_PREDICTED, *self.opened.classes], label="Of the class", min_width=220, elem_id="ddm-output"
            )
        self.trail, self.strongest, self.samples = _panel("ddm-trail"), _panel("ddm-strongest"), _panel("ddm-samples")

    def _lay_out_removal(self) -> None:
        gr.HTML("<h2>3 · Remove groups</h2>", padding=False)
        self.ticks = gr.CheckboxGroup(
            [], label="Groups, with what removing each does to the value; strongest first", elem_id="ddm-ticks"
        )
        with gr.Row():
            self.another = gr.Dropdown(
                [name for name in self.opened.datamodel.partition.names if self.opened.usable(name)],
                value=None,
                label="Another group",
                min_width=150,
                elem_id="ddm-another",
            )
            self.clear = gr.Button("Remove nothing", size="sm", min_width=120, elem_id="ddm-clear")
        self.bars, self.test_set = _panel("ddm-bars"), _panel("ddm-test-set")
        gr.HTML("<h2>4 · Keep it, or check it</h2>", padding=False)
        with gr.Row():
            self.save = gr.Button("Save this model", min_width=120, elem_id="ddm-save")
            self.compare = gr.Button("Compare with exact retraining", min_width=120, elem_id="ddm-compare")
        gr.HTML(f"<p class='ddm-small'>{escape(_sentence(phrases.cost, self.opened))}</p>", padding=False)
        self.saved, self.comparison = _panel("ddm-saved"), _panel("ddm-comparison")

    def _connect(self) -> None:
        """What each control does to the state."""
        when = self._when
        when(self.show.input, lambda state, show: replace(state, show=show, page=0), [self.show], asks=False)
        when(self.back.click, lambda state: self._turned(state, -1), asks=False)
        when(self.forward.click, lambda state: self._turned(state, 1), asks=False)
        when(self.index.submit, self._numbered, [self.index])
        when(self.upload.upload, self._dropped, [self.upload])
        when(self.label.input, lambda state, name: replace(state, label=_but(_UNKNOWN, name)), [self.label])
        when(self.objective.input, lambda state, name: replace(state, objective=name), [self.objective])
        when(self.output.input, lambda state, name: replace(state, output=_but(_PREDICTED, name)), [self.output])
        when(self.ticks.input, lambda state, ticked: replace(state, remove=tuple(ticked)), [self.ticks], asks=False)
        when(self.another.input, _with_another, [self.another], asks=False)
        when(self.clear.click, lambda state: replace(state, remove=()), asks=False)
        self._then_rest(self.gallery.select(self._picked, [self.state, self.effects], self._parts, **_QUIET), asks=True)
        loaded = self.blocks.load(
            self._loaded, [self.state, self.effects, self.query], self._parts, js=_READ_ADDRESS, **_QUIET
        )
        self._then_rest(loaded, asks=True)
        self.save.click(self._saved, [self.state], [self.saved], **_QUIET)
        # Whoever asks while another's retraining is under way is told so, instead of waiting.
        self.compare.click(self._compared, [self.state], [self.comparison], concurrency_limit=None, **_QUIET)

    def _when(
        self, event: Callable[..., Any], change: Callable[..., State], inputs: Sequence[Any] = (), *, asks: bool = True
    ) -> None:
        """When ``event`` happens, ``change(state, values of inputs …)`` is the new state; ``asks`` another question."""

        def handler(state: State | None, effects: Effects, *values: Any) -> Updates:
            updates = self._changed(state, effects, lambda state: change(state, *values))
            # A control that was used keeps its value: it may have been used again meanwhile.
            return {part: value for part, value in updates.items() if part not in inputs or part in self._emptied}

        given = [self.state, self.effects, *inputs]
        self._then_rest(event(handler, given, self._parts, trigger_mode="always_last", **_QUIET), asks=asks)

    def _then_rest(self, done: Any, *, asks: bool) -> None:
        """After an answer: the address, and what takes longer."""
        done = done.then(None, [self.query], None, js=_WRITE_ADDRESS, **_QUIET)
        if asks:
            done.then(self._ordered, [self.state], [self.samples], **_QUIET)

    @property
    def _emptied(self) -> list[Any]:
        """The controls that are empty again once they were used."""
        return [self.upload, self.another]

    @property
    def _parts(self) -> list[Any]:
        """The components that an answer may change."""
        controls = [self.show, self.index, self.upload, self.label, self.objective, self.output, self.ticks]
        found = [self.image, self.trail, self.strongest, self.samples, self.bars, self.test_set]
        kept = [self.saved, self.comparison, self.another, self.gallery, self.position]
        return [self.state, self.effects, self.query, self.notice, *controls, *found, *kept]

    def _loaded(self, _state: None, _effects: Effects, query: str) -> Updates:
        """The state of the address that was opened."""
        state, said = address.read(query or "", self.opened, answers.start(self.opened))
        state = replace(state, page=min(state.page, answers.pages(self.opened, state.show) - 1))
        return self._answered(None, state, ()) | {self.notice: panels.notice(said)}

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
            return {self.notice: panels.notice([_FORGOTTEN])}
        try:
            after = change(before)
            return self._answered(before, after, effects) | {self.notice: panels.notice(_warnings(after))}
        except InputError as error:
            return {self.notice: panels.notice([_capital(error)]), self.upload: None}

    def _answered(self, before: State | None, state: State, effects: Effects) -> Updates:
        """Everything that differs between two states."""
        updates = {self.state: state, self.query: address.write(state)} | self._controls(state)
        if before is None or _question(before) != _question(state):
            found, effects = self._asked(state)
            updates |= found
        if before is None or (before.show, before.page) != (state.show, state.page):
            updates |= self._offered(state)
        if before is None or (_question(before), before.remove) != (_question(state), state.remove):
            updates |= self._removed(state, effects)
        return updates

    def _controls(self, state: State) -> Updates:
        return {
            self.show: state.show,
            self.index: None if state.picture else state.index,
            self.upload: None,
            self.label: gr.update(value=state.label or _UNKNOWN, visible=bool(state.picture)),
            self.objective: state.objective,
            self.output: gr.update(value=state.output or _PREDICTED, visible=state.objective in PER_CLASS),
            self.another: None,
        }

    def _asked(self, state: State) -> tuple[Updates, Effects]:
        """What is behind the image's prediction."""
        opened, asked = self.opened, answers.ask(self.opened, state)
        trace, ranking = answers.trail(opened, state, asked), answers.ranking(opened, state, asked)
        effects = tuple(ranking.top(len(ranking)))
        focus = answers.focus(opened, state, asked)
        updates = {
            self.effects: effects,
            self.image: panels.image(opened, state, asked),
            self.trail: panels.trail(opened, state, asked, trace),
            self.strongest: panels.strongest(state, focus, ranking),
            self.samples: panels.members(opened, trace.group, f"Training samples of {trace.group} are being ordered …"),
        }
        return updates, effects

    def _offered(self, state: State) -> Updates:
        """The page of test images."""
        rows, count = answers.shown(self.opened, state), len(answers.offered(self.opened, state.show))
        test, classes = self.opened.data.test, self.opened.classes
        images = [(pictures.pixels(test.raw[row]), f"{row}: {classes[int(test.labels[row])]}") for row in rows]
        first = state.page * answers.PAGE
        span = f"{first + 1} to {first + len(rows)} of {count}" if count else "No such test images."
        return {self.gallery: images, self.position: f"<p class='ddm-small'>{span}</p>"}

    def _removed(self, state: State, effects: Effects) -> Updates:
        """The model without the ticked groups."""
        opened, asked = self.opened, answers.ask(self.opened, state)
        return {
            self.ticks: gr.update(choices=self._choices(state, effects), value=list(state.remove)),
            self.bars: panels.bars(opened, state, answers.prediction(opened, state, asked)),
            self.test_set: panels.test_set(opened, state, answers.confusions(opened, state)),
            self.saved: "",
            self.comparison: "",
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
            return panels.notice([_capital(error)])
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
        work = _Work(lambda: answers.compare(self.opened, state))
        started = time.monotonic()
        while not work.wait(0.25):
            yield panels.progress(time.monotonic() - started, self.opened.seconds)
        try:
            yield panels.comparison(self.opened, state, answers.ask(self.opened, state), work.result())
        except InputError as error:
            yield panels.notice([_capital(error)])


class _Work:
    """A function in a thread of its own."""

    def __init__(self, function: Callable[[], answers.Comparison]) -> None:
        self._function = function
        self._found: answers.Comparison | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._function()
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float) -> bool:
        """Whether it is done after so long at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> answers.Comparison:
        """What it returned; what it raised is raised again."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


def _panel(name: str) -> Any:
    return gr.HTML(elem_id=name, elem_classes="ddm-panel", padding=False)


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


def _capital(error: InputError) -> str:
    sentence = str(error)
    return sentence[:1].upper() + sentence[1:]


def _sentence(function: Callable[[Opened], str], opened: Opened) -> str:
    """What a function says, or why it cannot."""
    try:
        return function(opened)
    except InputError as error:
        return _capital(error)
