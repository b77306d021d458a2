"""Samples in words: what people read where a sample cannot be shown as a picture.

A sample with a view is a text or the row of a table. One without is described by its first numbers.
"""

from __future__ import annotations

import textwrap
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from ddm.data.inputs import X
from ddm.data.samples import Samples
from ddm.data.views import TableView
from ddm.plots.units import minus

LONGEST = 240
"""Maximum characters of a sample; longer ones are cut."""

_COMPARED = 400
"""Maximum rows of a table with which a row is compared."""

_NUMBERS = 6
"""Numbers that stand for a sample without a view."""


def is_image(samples: Samples) -> bool:
    """True if samples are grey or colour images."""
    shape = samples.shape
    return samples.view is None and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def describe(samples: Samples, row: int, longest: int = LONGEST) -> str:
    """One sample as text: what its view says, or else its first numbers."""
    text = numbers(samples.batch([row])[0], 0) if samples.view is None else samples.view.text(row)
    shortened = textwrap.shorten(text, longest, placeholder="…")
    return shortened if len(shortened) > 1 else f"{text.strip()[: longest - 1]}…"  # a single long word


def name(samples: Samples, row: int) -> str:
    """The name of a sample for a sentence: its id, or its position if it has none."""
    return f"sample {row}" if samples.ids is None else samples.ids[row]


def label_text(samples: Samples, row: int) -> str:
    """The label of a sample: its class, its numbers, the labels that it has, or nothing for labels by position."""
    label = samples.labels[row]
    if samples.has_classes:
        return samples.classes[int(label)]
    if not label.is_floating_point():
        return ""
    return values_text(label.reshape(-1), samples.classes)


def values_text(values: Tensor, names: tuple[str, ...]) -> str:
    """Numbers ``(L,)`` in words: one alone, several with their names; of labels that are 0 or 1, those that are 1."""
    if len(values) == 1:
        return minus(f"{float(values[0]):.4g}")
    if bool(((values == 0) | (values == 1)).all()):
        return ", ".join(one for one, value in zip(names, values.tolist(), strict=True) if value) or "none"
    return ", ".join(f"{one} {minus(f'{value:.4g}')}" for one, value in zip(names, values.tolist(), strict=True))


def numbers(x: X, row: int) -> str:
    """The first numbers of each tensor of an input."""
    leaves = {"": x} if isinstance(x, Tensor) else x.named_leaves()
    return "; ".join(f"{leaf_name} {_first(leaf[row])}".strip() for leaf_name, leaf in leaves.items())


def _first(values: Tensor) -> str:
    flat = values.flatten()
    number = "{:.3g}" if flat.is_floating_point() else "{}"
    shown = ", ".join(number.format(value) for value in flat[:_NUMBERS].tolist())
    return shown if len(flat) <= _NUMBERS else f"{shown}, … ({len(flat):,} numbers)"


def differing_columns(samples: Samples, row: int, count: int) -> list[tuple[str, str, str]]:
    """The columns in which a row of a table differs most from its class, or from all rows where there are no classes.

    Each with its value and what is usual. Empty for samples that are not rows of a table.
    """
    view = samples.view
    if not _is_table(view):
        return []
    like = samples.labels == samples.labels[row] if samples.has_classes else torch.ones(len(samples), dtype=torch.bool)
    rows = like.nonzero()[:, 0].numpy()
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _COMPARED)).astype(int))]
    return view.differing(row, view[some], count)


def _is_table(view: object) -> TypeGuard[TableView]:
    return isinstance(view, TableView)
