"""Inputs as one tensor of numbers and back: other tools take batches of ``(tensor, labels)`` only."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ddm.data.inputs import Inputs, X


class Packing:
    """Turns inputs of the form of ``example`` into tensors and back. Inputs that are a tensor stay as they are.

    The values of all tensors of a sample stand side by side as float64, which holds token ids exactly.
    """

    def __init__(self, example: X) -> None:
        self._form = pytree.tree_structure(example.tree) if isinstance(example, Inputs) else None
        leaves = example.leaves if isinstance(example, Inputs) else []
        self._shapes, self._types = [leaf.shape[1:] for leaf in leaves], [leaf.dtype for leaf in leaves]

    def pack(self, x: X) -> Tensor:
        """Inputs as one tensor ``(b, F)``."""
        return x if isinstance(x, Tensor) else torch.cat([leaf.flatten(1).double() for leaf in x.leaves], 1)

    def unpack(self, packed: Tensor) -> X:
        """Inputs from one tensor ``(b, F)``."""
        if self._form is None:
            return packed
        parts = packed.split([math.prod(shape) for shape in self._shapes], 1)
        leaves = [
            part.view(len(packed), *shape).to(kind)
            for part, shape, kind in zip(parts, self._shapes, self._types, strict=True)
        ]
        return Inputs(pytree.tree_unflatten(leaves, self._form))
