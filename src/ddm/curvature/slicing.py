"""Matrices with one column for each parameter, handled in slices that fit the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

MAX_FLOATS = 2**25
"""Maximum floats in one batch of rows."""

_MAX_SLICES = 64
"""Maximum number of recomputation passes, regardless of memory."""


def slices(size: int, width: int) -> list[slice]:
    """``size`` parameters in slices of at most ``width``, but no more than _MAX_SLICES slices."""
    width = max(width, -(-size // _MAX_SLICES))
    return [slice(start, start + width) for start in range(0, size, width)]


def stack_rows(parts: Iterable[Tensor], count: int) -> Tensor:
    """``count`` rows that arrive in parts, as one matrix. Unlike ``torch.cat`` this never holds the rows twice."""
    total, start = torch.empty(0), 0
    for part in parts:
        if not start:
            total = part.new_empty(count, *part.shape[1:])
        total[start : start + len(part)] = part
        start += len(part)
    return total


def merge_rows(parts: Iterator[Tensor], least: int = 2048) -> Iterator[Tensor]:
    """The same rows in parts of at least ``least`` rows, because larger matrix products are faster."""
    held: list[Tensor] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= least:
            yield torch.cat(held)
            held = []
    if held:
        yield torch.cat(held)
