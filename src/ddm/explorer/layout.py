"""The components of the page, and where they stand."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from ddm.explorer import phrases
from ddm.explorer.opened import Opened
from ddm.explorer.state import OBJECTIVES, PER_CLASS, State

UNKNOWN, PREDICTED = "unknown", "the predicted one"
"""What stands first where a class is chosen."""

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


class Components:
    """The components of the page of an opened run, made inside its blocks."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.state, self.effects = gr.State(None), gr.State(())
        self.query = gr.Textbox(visible="hidden", elem_id="ddm-query")
        gr.HTML(
            f"<h1>Which training data made the model do this?</h1><p class='ddm-trust'>Run "
            f"{escape(self.opened.run.name)}. {escape(self.opened.datamodel.trust)}</p>",
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
            [UNKNOWN, *self.opened.classes], label="Class of your picture", visible=False, elem_id="ddm-label"
        )

    def _lay_out_answers(self) -> None:
        self.image = _panel("ddm-image")
        gr.HTML("<h2>2 · See what is behind it</h2>", padding=False)
        with gr.Row():
            names = [(words, name) for name, words in OBJECTIVES.items()]
            self.objective = gr.Dropdown(names, label="What is measured", min_width=220, elem_id="ddm-objective")
            self.output = gr.Dropdown(
                [PREDICTED, *self.opened.classes], label="Of the class", min_width=220, elem_id="ddm-output"
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
        gr.HTML(f"<p class='ddm-small'>{escape(phrases.cost(self.opened))}</p>", padding=False)
        self.saved, self.comparison = _panel("ddm-saved"), _panel("ddm-comparison")

    @property
    def emptied(self) -> list[Any]:
        """The controls that are empty again once they were used."""
        return [self.upload, self.another]

    @property
    def answered(self) -> list[Any]:
        """The components that an answer may change."""
        controls = [self.show, self.index, self.upload, self.label, self.objective, self.output, self.ticks]
        found = [self.image, self.trail, self.strongest, self.samples, self.bars, self.test_set]
        kept = [self.saved, self.comparison, self.another, self.gallery, self.position]
        return [self.state, self.effects, self.query, self.notice, *controls, *found, *kept]

    def controls(self, state: State) -> Updates:
        """The values of the controls at a state."""
        return {
            self.show: state.show,
            self.index: None if state.picture else state.index,
            self.upload: None,
            self.label: gr.update(value=state.label or UNKNOWN, visible=bool(state.picture)),
            self.objective: state.objective,
            self.output: gr.update(value=state.output or PREDICTED, visible=state.objective in PER_CLASS),
            self.another: None,
        }


def _panel(name: str) -> Any:
    return gr.HTML(elem_id=name, elem_classes="ddm-panel", padding=False)
