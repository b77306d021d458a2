"""The components of the page and their layout."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from ddm.explorer import sentences
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.state import PER_CLASS, State, objectives_of

UNKNOWN, PREDICTED = "unknown", "the predicted one"
"""The first entry of the lists of classes."""

Updates = dict[Any, Any]
"""New values of components."""


class Blocks(gr.Blocks):
    """Gradio's blocks without its memory leak: Gradio keeps every version of each control that a visitor has used."""

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False
    ) -> list[Any]:
        """The values of the controls; old versions of them are deleted."""
        values: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        if state is not None:
            for number in state.blocks_config.blocks.keys() - self.blocks.keys():
                del state.blocks_config.blocks[number]
                state.config_values.pop(number, None)
        return values


class Components:
    """The components of the page, created inside its blocks."""

    def __init__(self, run: ExploredRun) -> None:
        self.run = run
        self.state, self.effects = gr.State(None), gr.State(())
        self.query = gr.Textbox(visible="hidden", elem_id="ddm-query")
        gr.HTML(
            f"<h1>Which training data made the model do this?</h1><p class='ddm-trust'>Run "
            f"{escape(self.run.folder.name)}. {escape(self.run.datamodel.trust)} "
            f"{escape(sentences.evidence_sentence(self.run))}</p>",
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
        kind, classes = self.run.kind, self.run.classes if self.run.has_classes else ()
        gr.HTML(f"<h2>1 · Choose {'an' if kind == 'image' else 'a'} {kind}</h2>", padding=False)
        kinds = [("wrong predictions" if classes else "largest errors first", "wrong"), ("all", "all")]
        shows = [*kinds, *((f"class {name}", f"class {name}") for name in classes)]
        self.show = gr.Dropdown(shows, label=f"Test {kind}s", elem_id="ddm-show")
        self.gallery = gr.Gallery(
            columns=6,
            height="auto",
            allow_preview=False,
            show_label=False,
            format="png",
            buttons=[],
            interactive=False,
            visible=kind == "image",
            elem_id="ddm-gallery",
        )
        self.snippets = gr.Radio([], show_label=False, visible=kind != "image", elem_id="ddm-snippets")
        self.position = gr.HTML(elem_id="ddm-position", padding=False)
        with gr.Row():
            self.back = gr.Button("← Previous", size="sm", min_width=80, elem_id="ddm-back")
            self.forward = gr.Button("Next →", size="sm", min_width=80, elem_id="ddm-forward")
        self.index = gr.Number(label="Or enter its number", precision=0, minimum=0, elem_id="ddm-index")
        self.upload = gr.File(
            label="Or drop your own picture", type="binary", height=130, visible=kind == "image", elem_id="ddm-upload"
        )
        types = self.run.data.encode is not None
        self.text = gr.Textbox(
            label="Or type a text of your own", lines=4, visible=types and kind == "text", elem_id="ddm-text"
        )
        self.columns = gr.Dataframe(
            headers=["column", "value"],
            datatype="str",
            type="array",
            column_count=2,
            static_columns=[0],
            interactive=True,
            label="Or change values of this row",
            max_height=260,
            visible=types and kind == "row",
            elem_id="ddm-columns-of-row",
        )
        self.ask = gr.Button(f"Ask about my {kind}", size="sm", visible=types, elem_id="ddm-ask")
        self.label = gr.Dropdown([UNKNOWN, *classes], label=f"Class of your {kind}", visible=False, elem_id="ddm-label")

    def _lay_out_answers(self) -> None:
        self.image = _panel("ddm-image")
        gr.HTML("<h2>2 · See the training data behind the answer</h2>", padding=False)
        with gr.Row():
            names = [(words, name) for name, words in objectives_of(self.run.task.kind).items()]
            self.objective = gr.Dropdown(names, label="Explained value", min_width=220, elem_id="ddm-objective")
            what = "Class" if self.run.has_classes else "Output"
            choices = [PREDICTED, *self.run.classes]
            self.output = gr.Dropdown(choices, label=what, min_width=220, elem_id="ddm-output")
        self.trail, self.strongest, self.samples = _panel("ddm-trail"), _panel("ddm-strongest"), _panel("ddm-samples")

    def _lay_out_removal(self) -> None:
        gr.HTML("<h2>3 · Remove groups</h2>", padding=False)
        known = "" if self.run.datamodel.evidence is None else " (and its 90 % interval)"
        self.ticks = gr.CheckboxGroup(
            [],
            label=f"Groups, strongest first, with the effect of removing each{known}",
            elem_id="ddm-ticks",
        )
        with gr.Row():
            self.another = gr.Dropdown(
                [name for name in self.run.datamodel.partition.names if self.run.can_remove(name)],
                value=None,
                label="Add another group",
                min_width=150,
                elem_id="ddm-another",
            )
            self.clear = gr.Button("Untick all", size="sm", min_width=120, elem_id="ddm-clear")
        self.bars, self.test_set = _panel("ddm-bars"), _panel("ddm-test-set")
        gr.HTML("<h2>4 · Save the model, or check it</h2>", padding=False)
        with gr.Row():
            self.save = gr.Button("Save this model", min_width=120, elem_id="ddm-save")
            self.compare = gr.Button("Compare with real retraining", min_width=120, elem_id="ddm-compare")
        gr.HTML(f"<p class='ddm-small'>{escape(sentences.retraining_cost(self.run))}</p>", padding=False)
        self.saved, self.comparison = _panel("ddm-saved"), _panel("ddm-comparison")

    @property
    def emptied_after_use(self) -> list[Any]:
        """Controls that are emptied after use."""
        return [self.upload, self.another]

    @property
    def outputs(self) -> list[Any]:
        """All components that an event may change."""
        controls = [self.show, self.index, self.upload, self.label, self.objective, self.output, self.ticks]
        controls += [self.snippets, self.text, self.columns]
        panels = [self.image, self.trail, self.strongest, self.samples, self.bars, self.test_set]
        others = [self.saved, self.comparison, self.another, self.gallery, self.position]
        return [self.state, self.effects, self.query, self.notice, *controls, *panels, *others]

    def control_values(self, state: State) -> Updates:
        """The values of the controls for a state."""
        return {
            self.show: state.show,
            self.index: None if state.is_own else state.index,
            self.upload: None,
            self.label: gr.update(value=state.label or UNKNOWN, visible=state.is_own and self.run.has_classes),
            self.objective: state.objective,
            self.output: gr.update(value=state.output or PREDICTED, visible=self._has_output(state)),
            self.another: None,
        }

    def _has_output(self, state: State) -> bool:
        """True if the visitor can choose among several classes or outputs."""
        return state.objective in PER_CLASS and len(self.run.classes) > 1


def _panel(name: str) -> Any:
    return gr.HTML(elem_id=name, elem_classes="ddm-panel", padding=False)
