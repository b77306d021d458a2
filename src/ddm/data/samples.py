"""Samples: inputs and labels of one split, whatever the inputs are.

Images stay ``uint8`` in memory (a quarter of ``float32``); ``batch`` returns ``(x/255 − mean)/std``. Anything else that
a network takes, such as token ids with a mask, is kept as it is (``ddm.data.inputs``), or read from the user's dataset
when it is needed (``ddm.data.reading``).
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ddm.data.inputs import Inputs, X, tensor_of, unwrap, wrap
from ddm.data.labels import parse_labels
from ddm.data.moments import moments
from ddm.data.reading import MEMORY, Collate, Reading, Source
from ddm.data.tasks import Task, task_of
from ddm.data.views import View
from ddm.errors import InputError

PER_SAMPLE = 128
"""Bytes of memory that a sample needs besides its input: label, origin, and row numbers while splits are drawn."""

_READ_AGAIN = 32
"""Maximum samples of a dataset that are read twice, to notice random augmentation."""

Index = slice | Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Samples(Dataset[tuple[Any, Any]]):
    """One split of a dataset.

    raw:     ``(n, C, H, W)`` uint8 in 0…255, or float32; other input shapes ``(n, ...)`` as float32; ``Inputs`` of
             anything else, or a ``Reading`` of what does not fit the memory
    labels:  ``(n,)`` int64, each in ``0 … len(classes) − 1``; for other tasks as ``ddm.data.tasks`` says
    classes: a name for each class, or for each output of the network where samples have no class
    mean, std: ``(C,)`` of the normalisation, on the scale 0…1 for uint8; empty for ``Inputs``
    origin:  ``(n,)`` position of each sample in the file it came from
    ids:     a name for each sample, such as its path; None for its position
    view:    how people see samples that are not pictures: as text, or as rows of a table
    groups:  ``(n,)`` the group of each sample, if the data name it
    options: options that a built-in network for these samples needs, such as the size of their vocabulary
    """

    raw: Tensor | Inputs | Reading
    labels: Tensor
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    origin: Tensor
    ids: tuple[str, ...] | None = None
    view: View | None = None
    groups: np.ndarray | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        raw: np.ndarray | Tensor,
        labels: np.ndarray | Tensor,
        classes: Sequence[str] | None = None,
        *,
        task: Task | str | None = None,
        what: str = "the data",
    ) -> Samples:
        """Samples from arrays of numbers, not normalised yet (mean 0, std 1). Raises ``InputError`` on bad input."""
        try:
            raw = torch.as_tensor(raw)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{what} holds inputs that are not numbers: encode words as numbers first.") from None
        if raw.is_complex():
            raise InputError(f"{what} holds complex numbers: give real ones.")
        if raw.dtype != torch.uint8:
            raw = raw.to(torch.float32)
        _check_inputs(raw, what)
        labels, classes = parse_labels(labels, len(raw), classes, task_of(task), what)
        channels = raw.shape[1]
        return cls(
            raw.contiguous(), labels, classes, torch.zeros(channels), torch.ones(channels), torch.arange(len(raw))
        )

    @classmethod
    def from_batch(
        cls,
        x: Any,
        labels: np.ndarray | Tensor,
        classes: Sequence[str] | None = None,
        *,
        task: Task | str | None = None,
        ids: Sequence[str] | None = None,
        view: View | None = None,
        what: str = "the data",
    ) -> Samples:
        """Samples from one batch of all of them: any nesting of tensors that the network takes.

        ids:  a name for each sample
        view: how people see the samples
        """
        inputs = wrap(x)
        for leaf in [inputs] if isinstance(inputs, Tensor) else inputs.leaves:
            if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                raise InputError(f"{what} contains NaN or infinite values: clean or drop those samples first.")
        labels, classes = parse_labels(labels, len(inputs), classes, task_of(task), what)
        inputs = inputs.to(torch.float32)
        none = torch.zeros(inputs.shape[1] if isinstance(inputs, Tensor) else 0)
        names = None if ids is None else tuple(map(str, ids))
        return cls(inputs, labels, classes, none, none + 1, torch.arange(len(inputs)), names, view)

    @classmethod
    def from_dataset(
        cls,
        dataset: Samples | Dataset[Any] | Any,
        classes: Sequence[str] | None = None,
        *,
        task: Task | str | None = None,
        collate: Collate | None = None,
        memory: float = MEMORY,
    ) -> Samples:
        """Samples from any map-style dataset, or from the ``DataLoader`` of one, after its own transforms.

        A sample is ``(input, label)``, ``(input, label, index)``, or a dict with ``labels``.

        collate: makes a batch of samples, as ``DataLoader(collate_fn=…)`` takes it
        memory:  GiB that the inputs may take. A larger dataset is read when its samples are needed
        """
        if isinstance(dataset, Samples):
            return dataset
        _refuse_arrays(dataset)
        source, what = Source(dataset, collate), "the dataset"
        try:
            if source.bytes_each * len(source) > memory * 2**30:
                reading, found = Reading.whole(source)
                labels, classes = parse_labels(found, len(reading), classes, task_of(task), what)
                none = torch.zeros(0)
                return cls(reading, labels, classes, none, none, torch.arange(len(reading)))
            x, given = source.batch(source.items(range(len(source))))  # in one batch, so that all are padded alike
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            why = " ".join(str(error).split()).rstrip(".")
            raise InputError(
                "the dataset must give (input, label) pairs with inputs of one shape, or dicts with labels, or else "
                f"give a collate_fn that pads them (collate=…); reading it failed with: {why}."
            ) from None
        if given is None:
            raise InputError("the samples have no labels: give (input, label) pairs, or dicts with labels.")
        column = isinstance(given, Tensor) and given.dim() == 2 and given.shape[1] == 1 and task_of(task).has_classes
        found = given[:, 0] if column else given
        if isinstance(x, Inputs) and isinstance(x.tree, Tensor) and (x.tree.dim() > 3 or x.tree.dtype == torch.uint8):
            x = x.tree  # whole-number pixels, not ids
        if isinstance(x, Tensor):
            samples = cls.from_arrays(x.to(torch.float32), found, classes, task=task, what=what)
        else:
            samples = cls.from_batch(x, found, classes, task=task, what=what)
        _warn_of_random_inputs(source, samples.raw)
        return samples

    def with_normalisation(self, mean: Tensor, std: Tensor) -> Samples:
        """The same samples with this normalisation: mean and standard deviation per channel ``(C,)``."""
        return replace(self, mean=mean, std=std)

    def resize(self, size: int) -> Samples:
        """The same images in ``size`` × ``size`` pixels: averaged if they shrink, interpolated if they grow."""
        if not isinstance(self.raw, Tensor) or self.raw.dim() != 4:
            raise InputError(f"inputs of shape {self.shape} are not images: leave out --size.")
        smaller = size <= min(self.shape[1:])
        method: dict[str, Any] = {"mode": "area"} if smaller else {"mode": "bilinear", "antialias": True}
        pixels = self.raw.new_empty(len(self), self.shape[0], size, size)
        step = max(1, 2**22 // (self.shape[0] * size * size))
        for part, resized in zip(self.raw.split(step), pixels.split(step), strict=True):
            values = F.interpolate(part.float(), (size, size), **method)
            resized.copy_(values.round() if pixels.dtype == torch.uint8 else values)
        return replace(self, raw=pixels)

    def bytes_per_sample(self, size: int | None) -> int:
        """Bytes of memory for each sample after resizing images to ``size`` × ``size`` pixels."""
        if not isinstance(self.raw, Tensor):
            return PER_SAMPLE + self.raw.nbytes // len(self)
        resized = size is not None and self.raw.dim() == 4
        shape = (self.shape[0], size or 0, size or 0) if resized else self.shape
        return PER_SAMPLE + math.prod(shape) * self.raw.element_size()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the stored values per channel, each ``(C,)``."""
        return moments(self.raw) if isinstance(self.raw, Tensor) else (self.mean, self.std)

    def __repr__(self) -> str:
        return f"Samples: {len(self):,} {_shape_and_classes(self)}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, ``(C, H, W)`` for images; of several tensors, that of the first."""
        if isinstance(self.raw, Tensor):
            return tuple(self.raw.shape[1:])
        x = self.raw if isinstance(self.raw, Inputs) else self.raw[:1].read()
        return tuple((x if isinstance(x, Tensor) else x.leaves[0]).shape[1:])

    @property
    def dtype(self) -> str:
        """The type of the stored values."""
        return self._form[1]

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and labels in memory."""
        return self.raw.nbytes + self.labels.nbytes

    @property
    def has_classes(self) -> bool:
        """True if every sample has one class, so that groups can lie within classes."""
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    def id(self, row: int) -> str:
        """The name of a sample: its path, or its position in the file it came from."""
        return str(int(self.origin[row])) if self.ids is None else self.ids[row]

    def __len__(self) -> int:
        return len(self.raw)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...
    @overload
    def __getitem__(self, index: Index) -> Samples: ...
    def __getitem__(self, index: int | Index) -> tuple[Any, Any] | Samples:
        if isinstance(index, (int, np.integer)):
            if not -len(self) <= index < len(self):
                raise IndexError(f"sample {index} of {len(self)}")
            x, y = self.batch([int(index) % len(self)])
            return unwrap(x[0]), y[0].item() if y.dim() == 1 else y[0]
        rows = torch.arange(len(self))[_rows(index)]
        return replace(
            self,
            raw=self.raw[rows],
            labels=self.labels[rows],
            origin=self.origin[rows],
            ids=None if self.ids is None else tuple(self.ids[row] for row in rows.tolist()),
            view=None if self.view is None else self.view[rows.numpy()],
            groups=None if self.groups is None else self.groups[rows.numpy()],
        )

    def batch(self, index: Index | None = None) -> tuple[X, Tensor]:
        """Inputs ``(b, ...)`` of some samples (default: all) as the network takes them, and labels ``(b, ...)``."""
        rows = _rows(slice(None) if index is None else index)
        return self.normalise(self.raw[rows]), self.labels[rows]

    @property
    def pixels(self) -> Tensor:
        """The stored values of inputs that are one tensor, such as pictures; others are refused."""
        return tensor_of(self.raw)

    def tensors(self, index: Index | None = None) -> tuple[Tensor, Tensor]:
        """As ``batch``, for inputs that are one tensor; others are refused."""
        x, y = self.batch(index)
        return tensor_of(x), y

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[X, Tensor]]:
        """``batch`` of each of these lists of positions. A dataset that is read when needed is read ahead."""
        if not isinstance(self.raw, Reading):
            yield from (self.batch(part) for part in parts)
            return
        for part, x in zip(parts, self.raw.stream([part.numpy() for part in parts]), strict=True):
            yield x.to(torch.float32), self.labels[part]

    def in_memory(self) -> Samples:
        """These samples with their inputs in memory, for work elsewhere that cannot read the dataset."""
        if not isinstance(self.raw, Reading):
            return self
        x = self.batch()[0]
        none = torch.zeros(x.shape[1] if isinstance(x, Tensor) else 0)
        return replace(self, raw=x, mean=none, std=none + 1)

    @property
    def bytes_each(self) -> int:
        """Bytes of an input as the network takes it."""
        if isinstance(self.raw, Reading):
            return self.raw.source.bytes_each
        each = self.raw.nbytes // max(1, len(self))
        return each * 4 if isinstance(self.raw, Tensor) and self.raw.dtype == torch.uint8 else each

    @property
    def are_images(self) -> bool:
        """True if an input is a picture: one tensor of numbers, ``(C, H, W)`` or larger."""
        if isinstance(self.raw, Reading):
            return isinstance(x := self.raw[:1].read(), Tensor) and x.dim() > 3
        return isinstance(self.raw, Tensor) and self.raw.dim() > 3

    def subsample(self, count: int, seed: int = 0) -> Samples:
        """At most ``count`` samples, drawn at random."""
        if len(self) <= count:
            return self
        return self[np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))]

    def normalise(self, raw: Tensor | Inputs | Reading) -> X:
        """Normalise stored values ``(b, ...)``, as the network needs them; ``Inputs`` are ready already."""
        if not isinstance(raw, Tensor):
            return raw if isinstance(raw, Inputs) else raw.read().to(torch.float32)
        x = raw.to(torch.float32)
        if raw.dtype == torch.uint8:
            x = x / 255
        return (x - self._per_channel(self.mean)) / self._per_channel(self.std)

    def _per_channel(self, values: Tensor) -> Tensor:
        assert isinstance(self.raw, Tensor)
        return values.view(1, -1, *([1] * (self.raw.dim() - 2)))

    def fingerprint(self) -> str:
        """Hash of the stored values, labels, classes and normalisation."""
        digest = hashlib.sha256(repr((*self._form, self.classes)).encode())
        for content in (*self._contents(), *(_bytes(part) for part in (self.labels, self.mean, self.std))):
            digest.update(content)
        return digest.hexdigest()

    @property
    def _form(self) -> tuple[Any, str]:
        """Shape and type of the stored values, for the fingerprint."""
        if isinstance(self.raw, Tensor):
            return tuple(self.raw.shape), str(self.raw.dtype)
        if isinstance(self.raw, Inputs):
            return len(self), str([(n, t.shape[1:], t.dtype) for n, t in self.raw.named_leaves().items()])
        return len(self), str(self.raw.dtype)

    def _contents(self) -> Iterator[bytes | memoryview]:
        """The stored values as bytes."""
        if isinstance(self.raw, Reading):
            yield self.raw.fingerprint.encode()
        else:
            yield from map(_bytes, [self.raw] if isinstance(self.raw, Tensor) else self.raw.leaves)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Sizes and hashes of the parts of the fingerprint. They show how two training sets differ."""
        return {
            "samples": len(self),
            "shape": list(self.shape),
            "type": self._form[1].removeprefix("torch."),
            "classes": _hash(repr(self.classes).encode()),
            "labels": _hash(_bytes(self.labels)),
            "inputs": _hash(*self._contents()),
            "scaling": _hash(_bytes(torch.cat([self.mean, self.std]))),
        }

    def difference_from(self, known: Mapping[str, Any] | None) -> str:
        """Describe the first of the ``fingerprint_parts`` that differs from ``known``, of another training set."""
        mine = self.fingerprint_parts()
        for part in mine if known else ():
            if known and known.get(part) != mine[part]:
                both = f"{known.get(part)} {part} there, {mine[part]} here"
                return both if part in ("samples", "shape", "type") else f"other {part}"
        return "another fingerprint"


def _hash(*contents: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor. numpy knows no bfloat16, but every tensor can be seen as bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True, eq=False)
class Data:
    """A dataset: three splits that share classes and normalisation (the training split's).

    published: number of samples in the publisher's training file
    task:      what the labels are, as ``ddm.data.tasks`` names it
    encode:    makes a sample, whose label means nothing, of what a user types: a text, or the values of a row by
               column; None for data that are not texts or tables
    """

    name: str
    train: Samples
    validation: Samples
    test: Samples
    published: int
    task: str = "classification"
    encode: Callable[[Any], Samples] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each label."""
        return self.train.classes

    def split(self, name: str) -> Samples:
        """``train``, ``validation`` or ``test``."""
        if name not in ("train", "validation", "test"):
            raise InputError(f"there is no split '{name}': use train, validation or test.")
        samples: Samples = getattr(self, name)
        return samples

    def __repr__(self) -> str:
        return (
            f"Data {self.name}: {len(self.train):,} training, {len(self.validation):,} validation and "
            f"{len(self.test):,} test samples {_shape_and_classes(self.train)}"
        )


def _shape_and_classes(samples: Samples) -> str:
    """Shape and classes of samples, for sentences."""
    what = f"in {len(samples.classes):,} classes" if samples.has_classes else f"with {len(samples.classes):,} outputs"
    return f"of shape {'×'.join(map(str, samples.shape))} {what}"


def check_two_classes(samples: Samples) -> None:
    """Refuse samples of a single class: there is nothing to learn from them."""
    if samples.has_classes and len(samples.classes) < 2:
        raise InputError(f"all samples have the class '{samples.classes[0]}': give data with at least two classes.")


def _check_inputs(raw: Tensor, what: str) -> None:
    if raw.dim() < 2 or raw.numel() == 0:
        raise InputError(f"{what} must hold at least one input, as an array of shape (n, ...).")
    if raw.is_floating_point() and not torch.isfinite(raw).all():
        raise InputError(f"{what} contains NaN or infinite values: clean or drop those samples first.")
    if bool((raw == raw.flatten()[0]).all()):
        raise InputError(f"{what} is constant: every input value is {raw.flatten()[0].item():g}; give other data.")


def _refuse_arrays(dataset: Any) -> None:
    """Refuse arrays of inputs, or a pair of inputs and labels, where a dataset is needed."""
    pair = isinstance(dataset, (tuple, list)) and len(dataset) == 2 and hasattr(dataset[0], "shape")
    if pair or isinstance(dataset, (np.ndarray, Tensor)):
        raise InputError("arrays are not a dataset: give ddm.Samples.from_arrays(inputs, labels).")


def _warn_of_random_inputs(source: Source, raw: Tensor | Inputs | Reading) -> None:
    """Warn if a dataset returns other inputs than ``raw`` when a few of its samples are read again."""
    rows = np.unique(np.linspace(0, len(raw) - 1, _READ_AGAIN).round().astype(int)).tolist()
    again, _ = source.batch(source.items(rows))
    if isinstance(raw, Reading) or not _equal(again, raw[rows]):
        warnings.warn(
            "the dataset returns another input when it reads a sample again: leave random augmentation out of it.",
            stacklevel=4,
        )


def _equal(again: X, known: X) -> bool:
    """True if two batches hold the same numbers, as far as both are padded."""
    pairs = zip(_leaves(again), _leaves(known), strict=True)
    return all(
        torch.equal(one.to(other.dtype), other[tuple(slice(size) for size in one.shape)]) for one, other in pairs
    )


def _leaves(x: X) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else x.leaves


def _rows(index: Index) -> slice | Tensor:
    """An index as a tensor. torch would turn an empty list into floats, which cannot be an index."""
    if isinstance(index, slice):
        return index
    rows = torch.as_tensor(index)
    return rows if len(rows) else rows.long()
