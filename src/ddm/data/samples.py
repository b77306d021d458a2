"""Samples: inputs and labels of one split. Inputs are stored as published and normalised when they are read.

Images stay ``uint8`` in memory (a quarter of ``float32``); ``batch`` returns ``(x/255 − mean)/std``.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ddm.compute.validation import are_unique_names
from ddm.errors import InputError

MAX_CLASSES = 100_000

PER_SAMPLE = 128
"""Bytes of memory that a sample needs besides its input: label, origin, and row numbers while splits are drawn."""

_READ_AGAIN = 32
"""Maximum samples of a dataset that are read twice, to notice random augmentation."""

Index = slice | Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Samples(Dataset[tuple[Tensor, int]]):
    """One split of a dataset.

    raw:     ``(n, C, H, W)`` uint8 in 0…255, or float32; other input shapes ``(n, ...)`` as float32
    labels:  ``(n,)`` int64, each in ``0 … len(classes) − 1``
    classes: a name for each label
    mean, std: ``(C,)`` of the normalisation, on the scale 0…1 for uint8
    origin:  ``(n,)`` position of each sample in the file it came from
    """

    raw: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    origin: Tensor

    @classmethod
    def from_arrays(
        cls,
        raw: np.ndarray | Tensor,
        labels: np.ndarray | Tensor,
        classes: Sequence[str] | None = None,
        *,
        what: str = "the data",
    ) -> Samples:
        """Samples from arrays, not normalised yet (mean 0, std 1). Raises ``InputError`` on bad input."""
        if np.asarray(labels).dtype.kind in "US":
            from ddm.data.labels import encode_labels

            classes, columns = encode_labels({"": labels}, classes, what)
            labels = columns[""]
        raw, labels = torch.as_tensor(raw), torch.as_tensor(labels)
        if raw.is_complex() or labels.is_complex():
            raise InputError(f"{what} holds complex numbers: give real ones.")
        if raw.dtype != torch.uint8:
            raw = raw.to(torch.float32)
        _check(raw, labels, classes, what)
        if classes is None:
            classes = default_class_names(int(labels.max()), what)
        labels = labels.to(torch.int64)
        channels = raw.shape[1]
        return cls(
            raw.contiguous(),
            labels,
            tuple(classes),
            torch.zeros(channels),
            torch.ones(channels),
            torch.arange(len(raw)),
        )

    @classmethod
    def from_dataset(cls, dataset: Samples | Dataset[Any], classes: Sequence[str] | None = None) -> Samples:
        """Samples from any torch dataset of ``(input, label)``, read once into memory after its own transforms."""
        if isinstance(dataset, Samples):
            return dataset
        length = len(dataset)  # type: ignore[arg-type]
        pairs = [dataset[i] for i in range(length)]
        if not pairs:
            raise InputError("the dataset is empty: give one with at least one (input, label) pair.")
        try:
            raw = torch.stack([torch.as_tensor(x, dtype=torch.float32) for x, _ in pairs])
            labels = torch.as_tensor([float(y) for _, y in pairs], dtype=torch.float64)  # int() would cut 0.7 to 0
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                "the dataset must give (input, label) pairs with inputs of one shape and whole-number "
                f"labels; reading it failed with: {error}"
            ) from None
        samples = cls.from_arrays(raw, labels, classes, what="the dataset")
        _warn_of_random_inputs(dataset, samples.raw)
        return samples

    def with_normalisation(self, mean: Tensor, std: Tensor) -> Samples:
        """The same samples with this normalisation: mean and standard deviation per channel ``(C,)``."""
        return replace(self, mean=mean, std=std)

    def resize(self, size: int) -> Samples:
        """The same images in ``size`` × ``size`` pixels: averaged if they shrink, interpolated if they grow."""
        if self.raw.dim() != 4:
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
        resized = size is not None and self.raw.dim() == 4
        shape = (self.shape[0], size or 0, size or 0) if resized else self.shape
        return PER_SAMPLE + math.prod(shape) * self.raw.element_size()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the stored values per channel, each ``(C,)``."""
        return _moments(self.raw)

    def __repr__(self) -> str:
        return f"Samples: {len(self):,} {_shape_and_classes(self)}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, ``(C, H, W)`` for images."""
        return tuple(self.raw.shape[1:])

    def __len__(self) -> int:
        return len(self.raw)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...
    @overload
    def __getitem__(self, index: Index) -> Samples: ...
    def __getitem__(self, index: int | Index) -> tuple[Tensor, int] | Samples:
        if isinstance(index, (int, np.integer)):
            if not -len(self) <= index < len(self):
                raise IndexError(f"sample {index} of {len(self)}")
            x, y = self.batch([int(index) % len(self)])
            return x[0], int(y[0])
        rows = torch.arange(len(self))[_rows(index)]
        return replace(self, raw=self.raw[rows], labels=self.labels[rows], origin=self.origin[rows])

    def batch(self, index: Index | None = None) -> tuple[Tensor, Tensor]:
        """Normalised inputs ``(b, ...)`` float32 and labels ``(b,)`` of some samples (default: all)."""
        rows = _rows(slice(None) if index is None else index)
        return self.normalise(self.raw[rows]), self.labels[rows]

    def subsample(self, count: int, seed: int = 0) -> Samples:
        """At most ``count`` samples, drawn at random."""
        if len(self) <= count:
            return self
        return self[np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))]

    def normalise(self, raw: Tensor) -> Tensor:
        """Normalise stored values ``(b, ...)``, as the network needs them."""
        x = raw.to(torch.float32)
        if raw.dtype == torch.uint8:
            x = x / 255
        return (x - self._per_channel(self.mean)) / self._per_channel(self.std)

    def _per_channel(self, values: Tensor) -> Tensor:
        return values.view(1, -1, *([1] * (self.raw.dim() - 2)))

    def fingerprint(self) -> str:
        """Hash of the stored values, labels, classes and normalisation."""
        digest = hashlib.sha256(repr((tuple(self.raw.shape), str(self.raw.dtype), self.classes)).encode())
        for tensor in (self.raw, self.labels, self.mean, self.std):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def fingerprint_parts(self) -> dict[str, Any]:
        """Sizes and hashes of the parts of the fingerprint. They show how two training sets differ."""
        return {
            "samples": len(self),
            "shape": list(self.shape),
            "type": str(self.raw.dtype).removeprefix("torch."),
            "classes": _hash(repr(self.classes).encode()),
            "labels": _hash(self.labels.contiguous().numpy().data),
            "inputs": _hash(self.raw.contiguous().numpy().data),
            "scaling": _hash(torch.cat([self.mean, self.std]).numpy().data),
        }

    def difference_from(self, known: Mapping[str, Any] | None) -> str:
        """Describe the first of the ``fingerprint_parts`` that differs from ``known``, of another training set."""
        mine = self.fingerprint_parts()
        for part in mine if known else ():
            if known and known.get(part) != mine[part]:
                both = f"{known.get(part)} {part} there, {mine[part]} here"
                return both if part in ("samples", "shape", "type") else f"other {part}"
        return "another fingerprint"


def _hash(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, eq=False)
class Data:
    """A dataset: three splits that share classes and normalisation (the training split's).

    published: number of samples in the publisher's training file
    """

    name: str
    train: Samples
    validation: Samples
    test: Samples
    published: int

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
    return f"of shape {'×'.join(map(str, samples.shape))} in {len(samples.classes):,} classes"


def check_two_classes(samples: Samples) -> None:
    """Refuse samples of a single class: there is nothing to learn from them."""
    if len(samples.classes) < 2:
        raise InputError(f"all samples have the class '{samples.classes[0]}': give data with at least two classes.")


def _check(raw: Tensor, labels: Tensor, classes: Sequence[str] | None, what: str) -> None:
    if raw.dim() < 2 or raw.numel() == 0:
        raise InputError(f"{what} must hold at least one input, as an array of shape (n, ...).")
    if labels.shape != (len(raw),):
        raise InputError(f"{what} has {len(raw)} inputs but labels of shape {tuple(labels.shape)}: give one each.")
    if labels.is_floating_point() and not _are_whole(labels):
        raise InputError(f"{what} has labels that are not whole numbers: number the classes from 0.")
    if raw.is_floating_point() and not torch.isfinite(raw).all():
        raise InputError(f"{what} contains NaN or infinite values: clean or drop those samples first.")
    if bool((raw == raw.flatten()[0]).all()):
        raise InputError(f"{what} is constant: every input value is {raw.flatten()[0].item():g}; give other data.")
    if classes is not None and len(set(classes)) < len(classes):
        raise InputError(f"{what} has two classes with the same name: rename one.")
    if classes is not None and not are_unique_names(classes):
        raise InputError(f"{what} has a class whose name is not text: rename it.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= len(classes)):
        count = len(classes) if classes is not None else high + 1
        raise InputError(
            f"{what} has labels from {low} to {high}; with {count} classes they must lie in 0 to {count - 1}."
        )


def _warn_of_random_inputs(dataset: Dataset[Any], raw: Tensor) -> None:
    """Warn if a dataset returns other inputs than ``raw`` when a few of its samples are read again."""
    rows = np.unique(np.linspace(0, len(raw) - 1, _READ_AGAIN).round().astype(int)).tolist()
    if not all(torch.equal(torch.as_tensor(dataset[row][0], dtype=torch.float32), raw[row]) for row in rows):
        warnings.warn(
            "the dataset returns another input when it reads a sample again: leave random augmentation out of it.",
            stacklevel=4,
        )


def _rows(index: Index) -> slice | Tensor:
    """An index as a tensor. torch would turn an empty list into floats, which cannot be an index."""
    if isinstance(index, slice):
        return index
    rows = torch.as_tensor(index)
    return rows if len(rows) else rows.long()


def _are_whole(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all()) and torch.equal(values, values.round())


def default_class_names(high: int, what: str) -> list[str]:
    """The names ``"0"`` to ``str(high)``, for classes without names."""
    if high >= MAX_CLASSES:
        raise InputError(f"{what} has the label {high}: number the classes from 0, {MAX_CLASSES} at most.")
    return [str(label) for label in range(high + 1)]


def _moments(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel ``(C,)``; a constant channel keeps std 1."""
    scale = 255.0 if raw.dtype == torch.uint8 else 1.0
    count = raw.numel() // raw.shape[1]
    mean = torch.zeros(raw.shape[1], dtype=torch.float64)
    for values in _by_channel(raw):
        mean += values.sum(1) / count
    variance = torch.zeros_like(mean)
    for values in _by_channel(raw):
        variance += (values - mean[:, None]).square().sum(1) / count
    std = variance.sqrt()
    # A standard deviation below the rounding errors of float32 is noise.
    std[std <= 1e-6 * mean.abs()] = scale
    return (mean / scale).float(), (std / scale).float()


def _by_channel(raw: Tensor) -> Iterator[Tensor]:
    """Stored values as float64 ``(C, ...)``, a few megabytes at a time."""
    step = max(1, 2**20 // raw[0].numel())
    for start in range(0, len(raw), step):
        yield raw[start : start + step].to(torch.float64).transpose(0, 1).flatten(1)
