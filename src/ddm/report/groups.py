"""Section "The groups of the training set": a map of the groups, and a card for each class."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ddm.plots.units import minus
from ddm.report import charts
from ddm.report.numbers import percent, plural
from ddm.report.pictures import SMALL
from ddm.report.subject import Subject

_THUMBNAILS = 4
_MAP, _GAP, _PUSHES = np.array([860.0, 440.0]), 0.9, 60
"""Size of the map in pixels, minimum distance of circles relative to touching, and iterations that push them apart."""

_OPEN = 60
"""Up to this many groups all cards are open."""


def groups_section(subject: Subject) -> dict[str, Any]:
    """The map, and a card for each class with its groups."""
    partition, places = subject.partition, flat(subject.centres)
    each = _THUMBNAILS
    if subject.shown.images:
        each = min(each, subject.shown.pictures.room(subject.data.train.shape, SMALL) // len(partition))
    return {
        "map": charts.group_map(
            apart(places[0], partition.sizes),
            partition.names,
            partition.sizes,
            [subject.is_bad(name) for name in partition.names],
            _hover(subject),
        ),
        "kept": percent(places[1], 0),
        "purity": partition.parents is None and subject.diagnosis is not None,
        "agreement": subject.diagnosis is not None,
        "mean": _mean_of(subject),
        "thumbnails": each if subject.shown.shown else 0,
        "images": subject.shown.images,
        "cards": [_card(subject, title, members, each) for title, members in _cards(subject)],
        "open": len(partition) <= _OPEN,
    }


def flat(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Points ``(K, F)`` on the plane in which they vary most ``(K, 2)``, and the share of the variance it keeps."""
    centred = points - points.mean(0)
    left, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(1)])
    places = np.zeros((len(points), 2))
    found = (left * sizes * np.where(signs == 0, 1, signs))[:, :2]
    places[:, : found.shape[1]] = found
    total = float(np.square(sizes).sum())
    return places, float(np.square(sizes[:2]).sum() / total) if total > 0 else 1.0


def apart(places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Places ``(K, 2)`` in pixels of a map, circles as large as groups pushed away from those that they would hide."""
    span = np.maximum(np.ptp(places, axis=0), 1e-12)
    moved: np.ndarray = (places - places.min(0)) / span * _MAP
    radii = charts.LARGEST / 2 * np.sqrt(sizes / sizes.max())
    wanted = np.add.outer(radii, radii) * _GAP
    np.fill_diagonal(wanted, 0)
    for _ in range(_PUSHES):
        ways = moved[:, None] - moved[None]
        ways[..., 0] += 1e-6 * np.subtract.outer(np.arange(len(moved)), np.arange(len(moved)))  # the same place
        distances = np.sqrt(np.square(ways).sum(2)) + 1e-9
        push = np.maximum(wanted - distances, 0) / (2 * distances)
        moved += (ways * push[..., None]).sum(1) / 2
    return moved


def _cards(subject: Subject) -> list[tuple[str, np.ndarray]]:
    """Each class with the numbers of its groups; all groups together where they cut across classes."""
    partition = subject.partition
    if partition.parents is None:
        return [("All groups", np.arange(len(partition)))]
    return [
        (f"Class {partition.classes[label]}", np.flatnonzero(partition.parents == label))
        for label in np.unique(partition.parents)
    ]


def _card(subject: Subject, title: str, members: np.ndarray, each: int) -> dict[str, Any]:
    sizes = subject.partition.sizes
    return {
        "title": title,
        "samples": plural(int(sizes[members].sum()), "sample"),
        "groups": [_row(subject, int(number), each) for number in members],
    }


def _row(subject: Subject, number: int, each: int) -> dict[str, Any]:
    partition, found = subject.partition, subject.diagnosis
    labels = subject.data.train.labels[torch.as_tensor(partition.rows(number))]
    return {
        "name": partition.names[number],
        "size": plural(int(partition.sizes[number]), "sample"),
        "purity": None if found is None else percent(_purity(labels), 0),
        "agreement": None if found is None else percent(float(found.agreement[number]), 0),
        "mean": minus(f"{float(labels.double().mean()):.4g}") if _mean_of(subject) else None,
        "effect": subject.effect_text("loss", number),
        "certainty": subject.certainty("loss", number),
        "shown": subject.thumbnails(partition.names[number], each) if each else [],
    }


def _purity(labels: torch.Tensor) -> float:
    """Share of a group's samples that have its most frequent label."""
    return float(labels.bincount().max() / len(labels))


def _mean_of(subject: Subject) -> str | None:
    """The name of the number that a regression predicts, whose mean is shown for each group; None for others."""
    classes = subject.data.classes
    return classes[0] if subject.task.kind == "regression" and len(classes) == 1 else None


def _hover(subject: Subject) -> list[str]:
    found, partition, second = subject.diagnosis, subject.partition, subject.second
    return [
        f"<b>{charts.literal(name)}</b>, {plural(int(partition.sizes[k]), 'sample')}<br>without it: "
        f"loss {subject.effect_text('loss', k)}, {second.replace('-', ' ')} {subject.effect_text(second, k)}"
        + ("" if found is None else f"<br>label agreement {percent(float(found.agreement[k]), 0)}")
        for k, name in enumerate(partition.names)
    ]
