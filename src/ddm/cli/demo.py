"""``ddm demo``: from digits to an answer, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddm.cli.options import AsJson, Device, Seed, output_path, print_json, with_seed

if TYPE_CHECKING:
    from rich.console import Console

    from ddm.data.samples import Data, Samples
    from ddm.datamodel import DistilledDatamodel
    from ddm.runs.config import Config

_REMOVED = 3
"""Number of groups that are removed together: those with the strongest effect on a prediction."""


def demo(
    out: Annotated[Path, typer.Option(parser=output_path, metavar="PATH", help="Folder for the run.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a small model on scikit-learn's digits and explain two of its predictions."""
    from ddm.compute.terminal import console
    from ddm.runs.config import Config
    from ddm.training.recipe import Recipe

    found = run_demo(
        out,
        with_seed(Config(options={"width": 16}, recipe=Recipe(epochs=20), clusters=5, device=device), seed),
    )
    if as_json:
        print_json(found)
    else:
        describe_demo(console(), found)


def run_demo(out: Path, config: Config) -> dict[str, Any]:
    """Fit and audit a run, then explain one wrong and one right prediction; returns JSON values."""
    from ddm.runs import run as runs

    datamodel, data, facts = runs.fit(config, out)
    audit = runs.audit(out, datamodel, data, retrain=8, unions=4, seeds=2, seed=config.recipe.seed)
    stories = {
        title: _explain(datamodel, data.test, index, out)
        for title, index in _choose_examples(datamodel, data.test).items()
    }
    page = _write_page(datamodel, data, out, facts)
    return {"run": str(out), "summary": facts, "audit": audit.to_dict(), "examples": stories, "report": page}


def describe_demo(console: Console, found: dict[str, Any]) -> None:
    """Print the results of a demo, and what to try next."""
    from ddm.cli.text import describe_audit, describe_run
    from ddm.truth.audit import Audit

    out = found["run"]
    console.print("THE MODEL")
    describe_run(console, found["summary"], out)
    console.print("\nHOW FAR TO TRUST IT")
    describe_audit(console, Audit.from_dict(found["audit"]))
    for title, story in found["examples"].items():
        console.print(f"\n{title.upper()}: test image {story['index']}")
        _describe_example(console, story)
    if found["report"] is not None:
        console.print("\nREPORT")
        console.print(f"Open {found['report']} in a browser.")
    story = next(iter(found["examples"].values()))
    index, driver = story["index"], next(iter(story["drivers"]))
    console.print("\nWHAT TO TRY NEXT")
    console.print(f"ddm trace {out} --index {index}")
    console.print(f"ddm attribute {out} --objective loss --split validation")
    console.print(f"ddm refine {out} --retrain 20")
    console.print(f"ddm audit {out} --retrain 20 --seeds 3")
    console.print(f"ddm unlearn {out} --remove {driver} --out model.safetensors")
    console.print("ddm fit mnist --root data/mnist --limit 5000 --out runs/mnist")
    if found["report"] is None:
        console.print(f"pip install 'distilled-datamodel[report]' && ddm report {out}")


def _describe_example(console: Console, story: dict[str, Any]) -> None:
    """Print a prediction, the groups that drive it, and the prediction without them."""
    console.print(f"Its true class is {story['label']}; the model says {story['said']} ({story['prediction']}).")
    console.print(f"Groups that drive it, with the change of the probability of {story['said']} without each:")
    for group, effect in story["effects"].items():
        console.print(f"  {group}: {effect}")
    console.print(f"Trace: class {story['class']}, then group {story['group']}.")
    rough = "" if story["beyond"] is None else f" {story['beyond']}"
    console.print(f"Without {', '.join(story['drivers'])} the model would say: {story['prediction_without']}.{rough}")
    console.print(f"Picture: {story['picture']}")


def _write_page(datamodel: DistilledDatamodel, data: Data, out: Path, facts: dict[str, Any]) -> str | None:
    """Write the report of the run and return its path; None if the extra ``report`` is not installed."""
    from ddm import report as reports

    if not reports.installed():
        return None
    page = out / "report.html"
    reports.write(datamodel, data, page, facts, command=f"ddm report {out}")
    return str(page)


def _choose_examples(datamodel: DistilledDatamodel, samples: Samples) -> dict[str, int]:
    """Positions of a wrong and a right prediction, each the one that depends most on a single group."""
    import numpy as np
    import torch

    x, y = samples.batch()
    confidence, said = datamodel.target.outputs(x).softmax(1).max(1)
    without = datamodel.outputs(x).softmax(2)[:, torch.arange(len(x)), said]
    dependence = (confidence - without.amin(0)).numpy()
    wrong = (said != y).numpy()
    chosen = {}
    for title, rows in (("A wrong prediction", np.flatnonzero(wrong)), ("A right prediction", np.flatnonzero(~wrong))):
        if len(rows):
            chosen[title] = int(rows[dependence[rows].argmax()])
    return chosen


def _explain(datamodel: DistilledDatamodel, samples: Samples, index: int, out: Path) -> dict[str, Any]:
    """A prediction, the groups that drive it, and the prediction without them."""
    import numpy as np

    from ddm import plots
    from ddm.cli.text import predictions

    x, label = samples[index]
    classes = samples.classes
    outputs = datamodel.target.outputs(x[None])[0]
    attribution = datamodel.attribute((x, label), "probabilities")
    strongest = np.argsort(attribution.scores)[:_REMOVED]
    drivers = {attribution.names[k]: float(attribution.scores[k]) for k in strongest}
    without = datamodel.outputs(x[None], datamodel.partition.mask(list(drivers))[None])[0, 0]
    trace = datamodel.trace((x, label))
    picture = out / f"effects-{index}.png"
    plots.save(attribution.plot(), picture)
    return {
        "index": index,
        "label": classes[label],
        "said": classes[int(outputs.argmax())],
        "prediction": predictions(outputs, classes),
        "drivers": drivers,
        "effects": {attribution.names[k]: attribution.effect_text(k) for k in strongest},
        "class": trace.class_name,
        "group": trace.group,
        "fine_tunings": trace.models,
        "full_search": trace.full,
        "prediction_without": predictions(without, classes),
        "beyond": datamodel.beyond(drivers),
        "picture": str(picture),
    }
