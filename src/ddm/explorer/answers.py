"""Answers: what the page shows, as functions of an opened run and a state. No Gradio here."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddm import networks
from ddm.answers import objectives
from ddm.answers.attribution import Attribution
from ddm.answers.objectives import Objective
from ddm.answers.shares import Shares
from ddm.answers.trace import Trace
from ddm.errors import InputError
from ddm.explorer import upload
from ddm.explorer.opened import COUNTERFACTUALS, Opened, confusion
from ddm.explorer.state import PER_CLASS, State
from ddm.truth.retraining import NO_ROWS, group_rows

PAGE = 24
"""Test images on a page."""

_MANY_PARAMETERS = 2**26
"""Parameters of all groups' models together from which one Jacobian is quicker than the models themselves."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The image that is asked about.

    raw:    as stored ``(C, H, W)``
    x, y:   as the network sees it ``(1, C, H, W)``, and its label ``(1,)``; the predicted class where it is unknown
    label:  the true class, or None
    logits: of the target ``(1, L)``
    """

    raw: Tensor
    x: Tensor
    y: Tensor
    label: str | None
    logits: Tensor

    @property
    def predicted(self) -> int:
        """The class that the target says."""
        return int(self.logits.argmax())


def ask(opened: Opened, state: State) -> Asked:
    """The test image or the picture that a state asks about."""
    if state.picture:
        raw = upload.restore(state.picture, opened.data.train)
        label = state.label or None
    else:
        raw = opened.data.test.raw[state.index]
        label = opened.classes[int(opened.data.test.labels[state.index])]
    x = opened.data.train.normalise(raw[None])
    with opened.lock:
        logits = opened.datamodel.target.outputs(x).cpu()
    y = logits.argmax(1) if label is None else torch.tensor([opened.classes.index(label)])
    return Asked(raw, x, y, label, logits)


def focus(opened: Opened, state: State, asked: Asked) -> str:
    """The class in focus: the one chosen, else the predicted one."""
    return state.output or opened.classes[asked.predicted]


def objective(opened: Opened, state: State, asked: Asked) -> Objective:
    """What is measured, as one value: of a class where the objective has a value for each."""
    if state.objective not in PER_CLASS:
        return objectives.resolve(state.objective, opened.datamodel.target.loss)
    named = objectives.OBJECTIVES[state.objective]
    name = focus(opened, state, asked)
    position = opened.classes.index(name)

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        return named.measure(outputs, baseline, labels)[position]

    return Objective(named.name, measure, named.meaning.replace("each class", f"class {name}"))


@dataclass(frozen=True, eq=False)
class Prediction:
    """Probabilities ``(L,)`` of the image's classes, with all groups and without those removed."""

    before: np.ndarray
    after: np.ndarray


def prediction(opened: Opened, state: State, asked: Asked) -> Prediction:
    """What the model says of the image, before and after the removal."""
    return Prediction(_probabilities(asked.logits)[0], _probabilities(_logits_without(opened, state, asked))[0])


def _logits_without(opened: Opened, state: State, asked: Asked) -> Tensor:
    """Logits ``(1, L)`` of the image without the groups removed."""
    if not state.remove:
        return asked.logits
    with torch.no_grad():
        logits: Tensor = opened.without(state.remove)(asked.x.to(opened.datamodel.target.device)).cpu()
    return logits


def _probabilities(logits: Tensor) -> np.ndarray:
    return logits.double().softmax(-1).numpy()


@dataclass(frozen=True, eq=False)
class Confusions:
    """Confusion matrices ``(L, L)``, true × predicted, with all groups and without those removed."""

    before: np.ndarray
    after: np.ndarray

    @property
    def accuracy(self) -> tuple[float, float]:
        """The fraction right, before and after."""
        return _right(self.before), _right(self.after)


def confusions(opened: Opened, state: State) -> Confusions:
    """What the removal does to the test set."""
    return Confusions(opened.counts(()), opened.counts(state.remove))


def _right(counts: np.ndarray) -> float:
    return float(np.trace(counts) / counts.sum())


def trail(opened: Opened, state: State, asked: Asked) -> Trace:
    """The class, then the group, behind the behaviour."""
    with opened.lock:
        return opened.datamodel.trace((asked.x, asked.y), objective(opened, state, asked))


def ranking(opened: Opened, state: State, asked: Asked) -> Attribution:
    """What removing each group does, strongest first."""
    datamodel, measured = opened.datamodel, objective(opened, state, asked)
    many = len(datamodel.partition) * datamodel.target.flat.size > _MANY_PARAMETERS
    with opened.lock:
        found = datamodel.attribute((asked.x, asked.y), measured, fast=many and datamodel.synset.steps == 1)
    return found.sort()


def shares(opened: Opened, state: State, asked: Asked, group: str) -> Shares:
    """The training samples of a group by what each contributes to its effect."""
    with opened.ordering:
        return opened.datamodel.shares((asked.x, asked.y), group, objective(opened, state, asked))


def offered(opened: Opened, show: str) -> np.ndarray:
    """Positions of the test images that are offered: all, wrong, or those of a class."""
    if show == "wrong":
        wanted = opened.predicted != opened.labels
    elif show == "all":
        wanted = np.ones(len(opened.rows), dtype=bool)
    else:
        wanted = opened.labels == opened.classes.index(show.removeprefix("class "))
    found: np.ndarray = opened.rows[wanted]
    return found


def shown(opened: Opened, state: State) -> np.ndarray:
    """Those of the page that is open."""
    found: np.ndarray = offered(opened, state.show)[state.page * PAGE : (state.page + 1) * PAGE]
    return found


def pages(opened: Opened, show: str) -> int:
    """How many pages the offered test images fill, at least 1."""
    return max(1, -(-len(offered(opened, show)) // PAGE))


def start(opened: Opened) -> State:
    """Where a visitor begins: the first wrong prediction, if there is one."""
    wrong = offered(opened, "wrong")
    return State(index=int(wrong[0]), show="wrong") if len(wrong) else State(index=int(opened.rows[0]))


def save(opened: Opened, state: State) -> Path:
    """Write the model without the removed groups into the run, under a name made of theirs."""
    if not state.remove:
        raise InputError("no group is removed: tick one first.")
    path = opened.run / COUNTERFACTUALS / f"{model_name(state.remove)}.safetensors"
    if not path.exists():
        opened.room.check()
    networks.save(opened.without(state.remove), path)
    return path


def model_name(remove: tuple[str, ...]) -> str:
    """A name of safe letters for the model without some groups: the same for the same groups, different for others."""
    names = sorted(remove)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", "_".join(names)).strip("-")[:60]
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
    return "-".join(part for part in ("without", readable, digest) if part)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The removal as the datamodel predicts it and as retraining shows it.

    value:         of what is measured on the image, with all groups
    effects:       of the removal on it, predicted and exact; the exact one compares two retrainings
    probabilities: ``(4, L)`` of the model, as predicted without the groups, retrained without them, and retrained with
                   all groups
    accuracy:      on the test images, of the same four
    """

    value: float
    effects: tuple[float, float]
    probabilities: np.ndarray
    accuracy: tuple[float, float, float, float]


def compare(opened: Opened, state: State) -> Comparison:
    """Really retrain without the removed groups, all at once, and with all groups, and compare with the prediction."""
    if not state.remove:
        raise InputError("no group is removed: tick one first.")
    asked = ask(opened, state)
    exact = _retrained(opened, state, torch.cat([asked.x, opened.data.test.batch(opened.rows)[0]]))
    logits = torch.cat([asked.logits, _logits_without(opened, state, asked), exact[:, 0]])
    measured = objective(opened, state, asked)
    value, predicted = _measured(measured, logits[:2], asked.logits, asked.y)
    true, base = _measured(measured, logits[2:], exact[1, :1], asked.y)
    without, whole = (_right(confusion(opened.labels, row[1:].argmax(1).numpy(), opened.classes)) for row in exact)
    accuracy = (*confusions(opened, state).accuracy, without, whole)
    return Comparison(value, (predicted - value, true - base), _probabilities(logits), accuracy)


def _retrained(opened: Opened, state: State, x: Tensor) -> Tensor:
    """Logits ``(2, n, L)`` for inputs ``x (n, ...)`` of networks retrained without the removed groups, and with all."""
    removals = _removals(opened, state)
    if not opened.retraining.acquire(blocking=False):
        raise InputError("another visitor's retraining is under way: try again when it has ended.")
    try:
        opened.room.check()
        return opened.exact().outputs(removals, 0, x)
    finally:
        opened.retraining.release()


def _removals(opened: Opened, state: State) -> list[np.ndarray]:
    """The training samples to leave out: those of the removed groups, and none."""
    partition = opened.datamodel.partition
    return [*group_rows(partition, partition.mask(state.remove)[None]), NO_ROWS]


def seconds_of_comparing(opened: Opened, state: State) -> float | None:
    """About how long a comparison takes: the time of the retrainings that have not been made yet."""
    if opened.seconds is None:
        return None
    return opened.seconds * opened.exact().count_missing(_removals(opened, state))


def _measured(measured: Objective, logits: Tensor, base: Tensor, y: Tensor) -> list[float]:
    """The objective's value for the logits ``(M, L)`` of M models, against the logits ``(1, L)`` of the base model."""
    values: list[float] = measured.values([logits[:, None]], base, y)[:, 0].tolist()
    return values
