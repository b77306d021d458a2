"""``ddm demo``: from digits to an answer, and what to try next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from torch import Tensor, nn

from ddm import run as runs
from ddm.datamodel import DistilledDatamodel
from ddm.datasets.samples import Samples
from ddm.run import Config
from ddm.words import describe_run, predictions

_REMOVED = 3


def demo(console: Console, out: Path, config: Config) -> None:
    """Train, distil, attribute and trace on digits, and tell the story of one wrong and one right prediction."""
    datamodel, data, facts = runs.fit(config, out)
    console.rule("The model")
    describe_run(console, facts, str(out))
    for title, index in _examples(datamodel, data.test).items():
        console.rule(f"{title}: test image {index}")
        _tell(console, datamodel, data.test, index, out)
    console.rule("What to try next")
    console.print(f"ddm trace {out} --index 0            which class, then which cluster, is behind a prediction")
    console.print(f"ddm attribute {out} --objective accuracy --split validation")
    console.print(f"ddm unlearn {out} --remove 3/7 --out model.safetensors", highlight=False)
    console.print("ddm fit mnist --root data/mnist --limit 5000 --out runs/mnist", highlight=False)


def _examples(datamodel: DistilledDatamodel, samples: Samples) -> dict[str, int]:
    """The wrong prediction with the most divided vote, and the right one; the latter alone if none is wrong."""
    x, y = samples.batch()
    probabilities = datamodel.target.outputs(x).softmax(1)
    wrong = (probabilities.argmax(1) != y).numpy()
    confidence = probabilities.amax(1).numpy()
    chosen = {}
    for title, rows in (("A wrong prediction", np.flatnonzero(wrong)), ("A right prediction", np.flatnonzero(~wrong))):
        if len(rows):
            chosen[title] = int(rows[confidence[rows].argmin()])
    return chosen


def _tell(console: Console, datamodel: DistilledDatamodel, samples: Samples, index: int, out: Path) -> None:
    """What is predicted, which groups drive it, and what would be predicted without them."""
    x, label = samples[index]
    classes = samples.classes
    outputs = datamodel.target.outputs(x[None])[0]
    said = classes[int(outputs.argmax())]
    console.print(
        f"It is a [bold]{classes[label]}[/]; the model says [bold]{said}[/] ({predictions(outputs, classes)})."
    )
    attribution = datamodel.attribute((x, label), "probabilities")
    order = np.argsort(attribution.scores)[:_REMOVED]
    drivers = [attribution.names[k] for k in order]
    listed = ", ".join(f"{attribution.names[k]} ({100 * attribution.scores[k]:+.1f} points)" for k in order)
    console.print(f"Groups that drive it, with the change of the probability of {said} when each is removed: {listed}.")
    trace = datamodel.trace((x, label))
    console.print(
        f"Traced by class, then cluster: {trace.class_name} → {trace.group}, in {trace.models} fine-tunings instead of "
        f"{trace.full}."
    )
    without = _one(datamodel.counterfactual(drivers), x)
    console.print(f"Without {', '.join(drivers)} it would say: {predictions(without, classes)}.")
    picture = out / f"effects-{index}.png"
    attribution.plot().savefig(picture, dpi=120)
    console.print(f"Picture: {picture}")


def _one(network: nn.Module, x: Tensor) -> Tensor:
    outputs: Tensor = network(x[None])[0].detach()
    return outputs
