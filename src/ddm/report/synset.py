"""Section "The synset": its synthetic inputs, beside real samples if they are pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ddm.data.inputs import X, tensor_of
from ddm.data.shown import numbers
from ddm.distil.synset import Synset
from ddm.report.effects import ends
from ddm.report.pictures import strip
from ddm.report.subject import Subject

_BANK, _ROWS, _STRIPS, _GROUPS, _COLUMNS = 16, 4, 4, 12, 48


def synset_section(subject: Subject) -> dict[str, Any]:
    """One bank of images with targets for each group, images for each group, or nothing if there is no synset."""
    if subject.datamodel.distilled.synset is None:
        return {"missing": True, "hidden": False}
    synset, settings = subject.datamodel.synset, subject.datamodel.settings
    noise = settings.start_images == "noise"
    facts = {
        "missing": False,
        "matching": settings.matching,
        "shared": synset.shared,
        "noise": noise,
        "images": synset.has_images,
        "what": _what(synset, noise),
        "count": synset.count,
        "hidden": not subject.shown.shown and subject.shown.images and not (synset.shared and noise),
    }
    return facts | (_bank(subject, facts) if synset.shared else _pairs(subject))


def _what(synset: Synset, noise: bool) -> str:
    """Words that say where the inputs of a bank come from."""
    if not noise:
        return "which are training samples"
    if synset.has_images:
        return "pure noise that shows no training sample"
    each = "column by column" if isinstance(synset.images, Tensor) else "position by position"
    return f"drawn {each} from the training values: no row is a training sample"


def _bank(subject: Subject, facts: dict[str, Any]) -> dict[str, Any]:
    """Some images of the bank, and how each group's targets differ from the model's answers on them."""
    datamodel = subject.datamodel
    images = _first(datamodel.synset.images, 0)
    shown = (
        [] if facts["hidden"] or not facts["images"] else subject.shown.pictures.synthetic(tensor_of(images[:_BANK]))
    )
    drawn = [] if facts["images"] or not facts["noise"] else [numbers(images, row) for row in range(_ROWS)]
    strongest = [] if subject.diagnosis is None else _strongest(subject, _STRIPS).tolist()
    return {"bank": shown, "drawn": drawn, "strips": [_strip(subject, number) for number in strongest]}


def _first(images: X, number: int) -> X:
    """The inputs ``(ipc, ...)`` of one group, or of the bank."""
    return images[number]


def _strip(subject: Subject, number: int) -> dict[str, Any]:
    """q̃ − p as a picture, one row per class and one column per image."""
    synset, target = subject.datamodel.synset, subject.datamodel.target
    predicted = target.outputs(_first(synset.images, 0)[:_COLUMNS].to(target.theta)).softmax(1).cpu()
    asked = synset.step_sizes[number] * (synset.targets[number][:_COLUMNS] - predicted)
    return {
        "name": synset.names[number],
        "picture": strip(asked.T.numpy()),
        "columns": len(predicted),
        "rows": predicted.shape[1],
    }


def _pairs(subject: Subject) -> dict[str, Any]:
    """The first image of some groups, beside the real sample nearest to the group's mean."""
    if not (subject.shown.shown and subject.shown.images):
        return {"pairs": []}
    synset = subject.datamodel.synset
    pairs = []
    for number in _strongest(subject, _GROUPS):
        real = subject.shown.pictures.of(subject.data.train, subject.typical(int(number), 1))
        made = subject.shown.pictures.synthetic(tensor_of(synset.images)[number][:1])
        pairs.append({"name": synset.names[number], "real": real, "made": made, "target": _target(subject, number)})
    return {"pairs": pairs}


def _target(subject: Subject, number: int) -> str:
    """The class that the first target pulls away from most, in words."""
    synset = subject.datamodel.synset
    values = synset.targets[number][0]
    label = int(values.argmin() if float(values.min()) < 0 else values.argmax())
    return f"target for {subject.data.classes[label]} {float(values[label]):.2f}".replace("-", "−")


def _strongest(subject: Subject, count: int) -> np.ndarray:
    """Groups that help and harm most, half of each."""
    helping, harming = ends(subject.effects("loss"), count)
    half = np.concatenate([helping[: count - count // 2], harming[: count // 2]])
    chosen: np.ndarray = half[subject.datamodel.synset.usable.numpy()[half]]
    return chosen
