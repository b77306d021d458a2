"""A question: the samples that a user asks about, turned into a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ddm.data.inputs import Inputs, X, unwrap, wrap
from ddm.data.reading import MEMORY, Reading, split_labels
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.errors import InputError

Question = Samples | tuple[Any, Any] | Mapping[str, Any] | Dataset[Any]
"""The samples asked about: ``Samples``, a pair ``(input, label)`` or ``(input, None)``, a batch ``(inputs, labels)`` or
a dict, or a torch dataset."""

Batch = tuple[X, Tensor | None]
"""Inputs ``(n, ...)`` and labels ``(n, ...)``; None if no labels were given."""


def batch_of(question: Question, task: Task, classes: int) -> Batch:
    """The batch of a question, after checking its labels.

    classes: the number of classes, or of outputs where samples have no class
    """
    if isinstance(question, (tuple, Mapping)):
        x, y = _whole_batch(*_parts(question), task)
    elif isinstance(question, (Samples, Dataset)) or hasattr(question, "__getitem__"):
        x, y = _read(Samples.from_dataset(question, task=task))
    else:
        raise InputError("ask about Samples, an (input, label) pair, a batch (inputs, labels), or a torch dataset.")
    if not bool(x.isfinite().all()):
        raise InputError("the inputs asked about contain NaN or infinite values.")
    if y is None:
        return x, None
    if len(x) == 0 or y.dim() == 0 or len(y) != len(x) or (task.has_classes and y.dim() != 1):
        raise InputError(f"{len(x)} inputs need one label each, not labels of shape {tuple(y.shape)}.")
    if (why := task.check_labels(y, classes)) is not None:
        raise InputError(f"{why}.")
    return x, y


def _read(samples: Samples) -> Batch:
    """All samples of a question, refused if they do not fit the memory that a dataset may take."""
    size = len(samples) * samples.bytes_each / 2**30
    if isinstance(samples.raw, Reading) and size > MEMORY:
        fits = int(len(samples) * MEMORY / size)
        raise InputError(
            f"these {len(samples):,} samples take {size:.1f} GiB at once: ask about fewer, such as "
            f"samples.subsample({fits:,})."
        )
    return samples.batch()


def _parts(question: tuple[Any, ...] | Mapping[str, Any]) -> tuple[Any, Any]:
    """The inputs of a question, and its labels if it has any."""
    if isinstance(question, Mapping):
        x, y = split_labels({name: torch.as_tensor(value) for name, value in question.items()})
        return unwrap(x), y
    if len(question) != 2:
        raise InputError("ask about Samples, an (input, label) pair, a batch (inputs, labels), or a torch dataset.")
    return question


def _whole_batch(inputs: Any, labels: Any, task: Task) -> Batch:
    """Inputs and labels of a pair as a batch; a single sample gets a first dimension."""
    try:
        x = inputs if isinstance(inputs, (Inputs, Mapping, tuple)) else torch.as_tensor(inputs)
        y = None if labels is None else torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"give an input as numbers, and its label as the number of its class ({error}).") from None
    if isinstance(x, Tensor) and (x.dim() > 2 or x.dtype == torch.uint8):
        x = x.to(torch.float32) if not x.is_complex() and not x.is_floating_point() else x
    if isinstance(x, Tensor) and x.is_complex():
        raise InputError("ask about real inputs.")
    if y is not None and task.has_classes and (y.is_complex() or not torch.equal(y, y.to(torch.int64).to(y.dtype))):
        raise InputError("ask about real inputs with labels that are whole numbers.")
    x = x.tree if isinstance(x, Inputs) else x
    if y is not None and y.dim() == 0:
        x = Inputs(x).map(lambda leaf: torch.as_tensor(leaf)[None]).tree
        y = y[None]
    if y is not None:
        y = y.to(torch.int64) if task.has_classes or task.by_position else y.float()
    return wrap(x), y
