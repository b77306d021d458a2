"""Section "The groups of the training set": a map of the groups, and a card for each class."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddm.report import charts
from ddm.report.numbers import percent, plural, points, signed
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
    each = min(_THUMBNAILS, subject.pictures.room(subject.data.train.shape, SMALL) // len(partition))
    return {
        "map": charts.group_map(
            apart(places[0], partition.sizes),
            partition.names,
            partition.sizes,
            [subject.is_bad(name) for name in partition.names],
            _hover(subject),
        ),
        "kept": percent(places[1], 0),
        "across": partition.parents is None,
        "thumbnails": each,
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
    return {
        "name": partition.names[number],
        "size": plural(int(partition.sizes[number]), "sample"),
        "purity": percent(_purity(subject, number), 0),
        "agreement": percent(float(found.agreement[number]), 0),
        "effect": signed(float(found.effects["loss"][number])),
        "certainty": subject.certainty("loss", number),
        "pictures": subject.thumbnails(partition.names[number], each) if each else [],
    }


def _purity(subject: Subject, number: int) -> float:
    """Share of a group's samples that have its most frequent label."""
    labels = subject.data.train.labels.numpy()[subject.partition.rows(number)]
    return float(np.bincount(labels).max() / len(labels))


def _hover(subject: Subject) -> list[str]:
    found, partition = subject.diagnosis, subject.partition
    return [
        f"<b>{charts.literal(name)}</b>, {plural(int(partition.sizes[k]), 'sample')}<br>without it: "
        f"loss {signed(float(found.effects['loss'][k]))}, accuracy {points(float(found.effects['accuracy'][k]))}"
        f"<br>label agreement {percent(float(found.agreement[k]), 0)}"
        for k, name in enumerate(partition.names)
    ]
