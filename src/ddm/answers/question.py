"""A question: the samples that a user asks about, turned into a batch of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ddm.data.samples import Samples
from ddm.errors import InputError

Question = Samples | tuple[Any, Any] | Dataset[Any]
"""The samples asked about: ``Samples``, a pair ``(input, label)``, a batch ``(inputs, labels)``, or a torch dataset."""

Batch = tuple[Tensor, Tensor]
"""Inputs ``(n, ...)`` and labels ``(n,)``."""


def batch_of(question: Question, classes: int) -> Batch:
    """The batch of a question, after checking that all labels are below ``classes``."""
    if isinstance(question, tuple) and len(question) == 2:
        x, y = _tensors(question)
        if y.dim() == 0:
            x, y = x[None], y[None]
    elif isinstance(question, (Samples, Dataset)):
        x, y = Samples.from_dataset(question).batch()
    else:
        raise InputError("ask about Samples, an (input, label) pair, a batch (inputs, labels), or a torch dataset.")
    if len(x) == 0 or y.shape != (len(x),):
        raise InputError(f"{len(x)} inputs need one label each, not labels of shape {tuple(y.shape)}.")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(f"labels must lie in 0 to {classes - 1}; these reach from {int(y.min())} to {int(y.max())}.")
    if not torch.isfinite(x).all():
        raise InputError("the inputs asked about contain NaN or infinite values.")
    return x if x.is_floating_point() else x.to(torch.float32), y.to(torch.int64)


def _tensors(question: tuple[Any, Any]) -> Batch:
    """A pair or batch as tensors of real inputs and integer labels."""
    try:
        x, y = torch.as_tensor(question[0]), torch.as_tensor(question[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"give an input as numbers, and its label as the number of its class ({error}).") from None
    if x.is_complex() or y.is_complex() or not torch.equal(y, y.to(torch.int64).to(y.dtype)):
        raise InputError("ask about real inputs with labels that are whole numbers.")
    return x, y
