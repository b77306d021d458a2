"""The bank: the inputs that all synsets share, drawn so that no training sample is among them.

Pictures are replaced by noise. Everything else is drawn from the *marginals* of the training inputs: each column of a
table, and each position of a text, takes the value of a training sample of its own. So a row of the bank has plausible
values everywhere, but is nobody's row. The mask and the padding of a text, and the special id at its end, are taken
together from one training sample; they reveal its length alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ddm.data.inputs import Inputs, X
from ddm.data.samples import Samples

_SEEN = 4096
"""Maximum training samples from which the marginals are taken."""

_BYTES = 2**28
"""Maximum bytes of these samples."""

_FIXED = ("mask", "type_ids", "position_ids")
"""Words in the names of tensors that describe the form of a sample; they are taken from one sample together."""

_SPECIAL = 0.99
"""Share of the samples that end in an id from which on it is special, such as a separator."""


def draw_bank(samples: Samples, count: int, seed: int, start: str = "noise") -> X:
    """Inputs ``(count, ...)``, as the network takes them.

    start: ``noise`` as above, or ``real`` for training samples from each class in turn
    """
    if start != "noise":
        return samples.batch(_turns(samples, count, seed))[0]
    if samples.are_images:
        return torch.randn(count, *samples.shape, generator=torch.Generator().manual_seed(seed))
    x = samples.subsample(max(1, min(_SEEN, _BYTES // max(1, samples.bytes_each))), seed).batch()[0]
    rng = np.random.default_rng([seed, count])
    return _columns(x, count, rng) if isinstance(x, Tensor) else _inputs(x, count, rng)


def _turns(samples: Samples, count: int, seed: int) -> np.ndarray:
    """Positions of training samples ``(count,)``, from each class in turn."""
    rng = np.random.default_rng(seed)
    labels = samples.labels.numpy() if samples.has_classes else np.zeros(len(samples))
    orders = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    turns = [order[turn % len(order)] for turn in range(-(-count // len(orders))) for order in orders]
    return np.array(turns[:count])


def _columns(x: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Rows ``(count, ...)`` in which every number is that of a random sample of ``x (n, ...)`` at the same place."""
    flat = x.flatten(1)
    rows = torch.as_tensor(rng.integers(len(x), size=(count, flat.shape[1])))
    return flat.gather(0, rows).view(count, *x.shape[1:])


def _inputs(x: Inputs, count: int, rng: np.random.Generator) -> Inputs:
    """The same for a nesting of tensors."""
    names, leaves = list(x.named_leaves()), x.leaves
    templates = torch.as_tensor(rng.integers(len(x), size=count))
    masks = [leaf for name, leaf in zip(names, leaves, strict=True) if "mask" in name or leaf.dtype == torch.bool]
    drawn = [
        leaf[templates]
        if any(word in name for word in _FIXED) or leaf.dtype == torch.bool
        else _leaf(leaf, next((mask for mask in masks if mask.shape == leaf.shape), None), templates, rng)
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return Inputs(pytree.tree_unflatten(drawn, pytree.tree_structure(x.tree)))


def _leaf(leaf: Tensor, mask: Tensor | None, templates: Tensor, rng: np.random.Generator) -> Tensor:
    """One tensor of the bank: numbers by their place, ids by their position in the samples that reach so far."""
    if leaf.dim() == 1:
        return _columns(leaf[:, None], len(templates), rng)[:, 0]
    if leaf.is_floating_point() or leaf.dim() > 2:
        return _columns(leaf, len(templates), rng)
    shown = torch.ones_like(leaf, dtype=torch.bool) if mask is None else mask.bool()
    special, drawn = _last_id(leaf, shown), leaf[templates].clone()
    for position in range(leaf.shape[1]):
        column = leaf[shown[:, position], position]
        column = column if special is None else column[column != special]
        free = shown[templates, position] & (drawn[:, position] != (-1 if special is None else special))
        if len(column) and bool(free.any()):
            drawn[free, position] = column[torch.as_tensor(rng.integers(len(column), size=int(free.sum())))]
    return drawn


def _last_id(ids: Tensor, shown: Tensor) -> int | None:
    """The id at the end of nearly every sample; None if there is none, or if samples have no mask."""
    if bool(shown.all()):
        return None
    places = torch.arange(ids.shape[1]).expand(ids.shape)
    last = ids.gather(1, torch.where(shown, places, -1).amax(1, keepdim=True).clamp(min=0))[:, 0]
    common = int(last.mode().values)
    return common if float((last == common).double().mean()) >= _SPECIAL else None
