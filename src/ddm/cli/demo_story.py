"""``ddm demo``: from digits to an answer, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ddm import plots
from ddm.cli.text import describe_audit, describe_run, predictions
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.runs import run as runs
from ddm.runs.config import Config
from ddm.truth.audit import Audit

_REMOVED = 3
"""Groups that are removed together, the strongest drivers of a prediction."""


def demo(out: Path, config: Config) -> dict[str, Any]:
    """Train, distil, audit, attribute and trace, and find the story of one wrong and one right prediction."""
    datamodel, data, facts = runs.fit(config, out)
    audit = runs.audit(out, datamodel, data, retrain=8, unions=4, seeds=2, seed=config.recipe.seed)
    stories = {
        title: _story(datamodel, data.test, index, out) for title, index in _examples(datamodel, data.test).items()
    }
    page = _page(datamodel, data, out, facts)
    return {"run": str(out), "summary": facts, "audit": audit.to_dict(), "examples": stories, "report": page}


def tell(console: Console, found: dict[str, Any]) -> None:
    """Say what a demo found."""
    out = found["run"]
    console.print("THE MODEL")
    describe_run(console, found["summary"], out)
    console.print("\nHOW FAR TO TRUST IT")
    describe_audit(console, Audit.from_dict(found["audit"]))
    for title, story in found["examples"].items():
        console.print(f"\n{title.upper()}: test image {story['index']}")
        console.print(f"It is a {story['label']}; the model says {story['said']} ({story['prediction']}).")
        drivers = ", ".join(f"{group} ({100 * effect:+.1f} points)" for group, effect in story["drivers"].items())
        console.print(
            f"Groups that drive it, with what the probability of {story['said']} does without each: {drivers}."
        )
        console.print(
            f"Traced by class, then cluster: {story['class']} → {story['group']}, in {story['fine_tunings']} "
            f"fine-tunings instead of {story['full_search']}."
        )
        console.print(f"Without {', '.join(story['drivers'])} it would say: {story['prediction_without']}.")
        console.print(f"Picture: {story['picture']}")
    if found["report"] is not None:
        console.print("\nALL OF IT AS A PAGE")
        console.print(f"Open {found['report']} in a browser.")
    story = next(iter(found["examples"].values()))
    index, driver = story["index"], next(iter(story["drivers"]))
    console.print("\nWHAT TO TRY NEXT")
    console.print(f"ddm trace {out} --index {index}")
    console.print(f"ddm attribute {out} --objective loss --split validation")
    console.print(f"ddm audit {out} --retrain 20 --seeds 3")
    console.print(f"ddm unlearn {out} --remove {driver} --out model.safetensors")
    console.print("ddm fit mnist --root data/mnist --limit 5000 --out runs/mnist")
    if found["report"] is None:
        console.print(f"pip install 'distilled-datamodel[report]' && ddm report {out}")


def _page(datamodel: DistilledDatamodel, data: Data, out: Path, facts: dict[str, Any]) -> str | None:
    """Where the page of the run is; None where what makes it is not installed."""
    from ddm import report as reports

    if not reports.installed():
        return None
    page = out / "report.html"
    reports.write(datamodel, data, page, facts, command=f"ddm report {out}")
    return str(page)


def _examples(datamodel: DistilledDatamodel, samples: Samples) -> dict[str, int]:
    """The wrong and the right prediction that owe most to one group; the latter alone if none is wrong."""
    x, y = samples.batch()
    confidence, said = datamodel.target.outputs(x).softmax(1).max(1)
    without = datamodel.outputs(x).softmax(2)[:, torch.arange(len(x)), said]
    owed = (confidence - without.amin(0)).numpy()
    wrong = (said != y).numpy()
    chosen = {}
    for title, rows in (("A wrong prediction", np.flatnonzero(wrong)), ("A right prediction", np.flatnonzero(~wrong))):
        if len(rows):
            chosen[title] = int(rows[owed[rows].argmax()])
    return chosen


def _story(datamodel: DistilledDatamodel, samples: Samples, index: int, out: Path) -> dict[str, Any]:
    """What is predicted, which groups drive it, and what would be predicted without them."""
    x, label = samples[index]
    classes = samples.classes
    outputs = datamodel.target.outputs(x[None])[0]
    attribution = datamodel.attribute((x, label), "probabilities")
    drivers = {attribution.names[k]: float(attribution.scores[k]) for k in np.argsort(attribution.scores)[:_REMOVED]}
    without = datamodel.counterfactual(drivers)(x[None])[0].detach()
    trace = datamodel.trace((x, label))
    picture = out / f"effects-{index}.png"
    plots.save(attribution.plot(), picture)
    return {
        "index": index,
        "label": classes[label],
        "said": classes[int(outputs.argmax())],
        "prediction": predictions(outputs, classes),
        "drivers": drivers,
        "class": trace.class_name,
        "group": trace.group,
        "fine_tunings": trace.models,
        "full_search": trace.full,
        "prediction_without": predictions(without, classes),
        "picture": str(picture),
    }
