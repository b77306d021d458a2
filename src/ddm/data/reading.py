"""Samples that are read from a dataset when they are needed, because they do not fit the memory.

A ``Reading`` stands for some rows of a map-style dataset. Indexing selects rows; ``read`` loads them and collates them
as the user's loader does. Labels and a fingerprint need one pass over all samples, which happens once.
"""

from __future__ import annotations

import hashlib
import io
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ddm.compute.progress import bar
from ddm.data.inputs import X, at_once, wrap
from ddm.errors import InputError

MEMORY = 2.0
"""GiB that a dataset may take if it is held in memory; a larger one is read when needed."""

_BATCH = 256
"""Samples per batch of the first pass."""

_SIZED = 64
"""Samples whose mean size stands for the size of all."""

LABELS = ("labels", "label", "target", "targets")
"""Names under which a batch in the form of a dict holds its labels."""

Labels = Tensor | np.ndarray
"""Labels ``(n, ...)``: numbers, or an array of words."""

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples, as ``DataLoader(collate_fn=…)`` takes it."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles for other processes. ``pickle`` alone would copy all values of a memory-mapped array."""

    def reducer_override(self, obj: Any) -> Any:
        """A whole memory-mapped array by its file; anything else as usual."""
        if isinstance(obj, np.memmap) and isinstance(obj.base, mmap.mmap) and obj.filename is not None:
            order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
            return np.memmap, (str(obj.filename), obj.dtype, "r", obj.offset, obj.shape, order)
        return super().reducer_override(obj)


class Source:
    """A map-style dataset with the function that makes batches of it."""

    def __init__(self, dataset: Any, collate: Collate | None = None, workers: int = 0) -> None:
        if isinstance(dataset, DataLoader):
            collate = collate or dataset.collate_fn
            dataset, workers = dataset.dataset, dataset.num_workers
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise InputError(
                "this dataset has no positions, so its samples cannot be grouped or left out: give one with a length "
                "and an index, such as list(dataset)."
            )
        if not len(dataset):
            raise InputError("the dataset is empty: give one with at least one sample.")
        self.dataset, self.collate, self.workers = dataset, collate or stack, workers

    def __len__(self) -> int:
        return len(self.dataset)

    def items(self, rows: Sequence[int]) -> list[Any]:
        """Samples as the dataset returns them."""
        whole = getattr(self.dataset, "__getitems__", None)
        return list(whole(list(rows))) if whole is not None else [self.dataset[row] for row in rows]

    def batch(self, items: list[Any]) -> tuple[X, Labels | None]:
        """Inputs and labels of some samples, collated."""
        return split_labels(self.collate(items))

    def batches(self) -> Iterator[tuple[X, Labels | None]]:
        """All samples in order, in batches, read by as many processes as the user's loader had."""
        size = at_once(_BATCH, self.bytes_each)
        loader = DataLoader(self.dataset, size, collate_fn=self.collate, num_workers=self.workers)
        with bar("reading the dataset", len(loader)) as advance:
            for batch in loader:
                yield split_labels(batch)
                advance(1)

    @cached_property
    def bytes_each(self) -> int:
        """Estimated bytes of an input, from evenly spaced samples."""
        rows = np.unique(np.linspace(0, len(self) - 1, _SIZED).round().astype(int)).tolist()
        x, _ = self.batch(self.items(rows))
        return x.nbytes // len(rows)

    def stream(self, parts: Sequence[Sequence[int]]) -> Iterator[X]:
        """The inputs at each of these lists of positions, read ahead by as many processes as the user's loader."""
        if not self.workers:
            yield from (self.batch(self.items(rows))[0] for rows in parts)
            return
        # A generator of its own, because the loader would draw from the global one.
        own = torch.Generator()
        loader = DataLoader(
            self.dataset,
            batch_sampler=[list(rows) for rows in parts],
            collate_fn=self.collate,
            num_workers=self.workers,
            generator=own,
        )
        yield from (split_labels(batch)[0] for batch in loader)

    def __getstate__(self) -> dict[str, Any]:
        """The dataset as bytes. Arrays that lie in a file are pickled as the name of the file, not as their values."""
        buffer = io.BytesIO()
        _Pickler(buffer).dump(self.dataset)
        return {**vars(self), "dataset": buffer.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"dataset": cloudpickle.loads(state["dataset"])})


class Reading:
    """Rows of a source, read when they are needed.

    rows:        positions in the dataset ``(n,)``
    fingerprint: identifies the values of these rows
    """

    def __init__(self, source: Source, rows: np.ndarray, fingerprint: str) -> None:
        self.source, self.rows, self.fingerprint = source, rows, fingerprint
        self.dtype = "read when needed"

    @classmethod
    def whole(cls, source: Source) -> tuple[Reading, Labels]:
        """All samples of a source, and their labels ``(n, ...)``."""
        digest, labels = hashlib.sha256(), list[np.ndarray]()
        for x, y in source.batches():
            if y is None:
                raise InputError("the samples have no labels: give (input, label) pairs, or dicts with labels.")
            for leaf in [x] if isinstance(x, Tensor) else x.leaves:
                if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                    raise InputError("the dataset contains NaN or infinite values: clean or drop those samples first.")
                digest.update(leaf.contiguous().numpy().data)
            # A copy in another place: small tensors between large ones keep the memory of these from being freed.
            labels.append(np.array(y.numpy() if isinstance(y, Tensor) else y))
        together = np.concatenate(labels)
        found = together if together.dtype.kind in "USO" else torch.from_numpy(together)
        return cls(source, np.arange(len(source)), digest.hexdigest()), found

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Reading:
        rows = self.rows[np.asarray(index) if not isinstance(index, slice) else index]
        part = hashlib.sha256(self.fingerprint.encode() + rows.tobytes()).hexdigest()
        return Reading(self.source, rows, part)

    def stream(self, parts: Sequence[np.ndarray]) -> Iterator[X]:
        """The inputs of each of these lists of rows."""
        return self.source.stream([self.rows[part].tolist() for part in parts])

    def read(self) -> X:
        """The inputs of these rows, in memory."""
        return self.source.batch(self.source.items(self.rows.tolist()))[0]

    @property
    def nbytes(self) -> int:
        """Bytes that are held in memory: none."""
        return 0


def split_labels(batch: Any) -> tuple[X, Labels | None]:
    """Inputs and labels of a batch: of a pair, of (inputs, labels, index), or of a dict with ``labels``."""
    if isinstance(batch, Mapping):
        rest = {str(name): _tensor(value) for name, value in batch.items() if name not in LABELS}
        labels = [batch[name] for name in LABELS if name in batch]
        return wrap({name: value for name, value in rest.items() if value is not None}), _labels(labels)
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        return wrap(_nested(batch[0])), _labels([batch[1]])
    if isinstance(batch, Tensor):
        return wrap(batch), None
    raise InputError(
        f"a batch of this dataset is a {type(batch).__name__}: give (inputs, labels), (inputs, labels, index), or a "
        "dict with labels, by a collate_fn if need be."
    )


def _labels(found: Sequence[Any]) -> Labels | None:
    """Labels as a tensor, or as an array of words; None if there are none."""
    if not found:
        return None
    labels = _tensor(found[0])
    return np.asarray(found[0]) if labels is None else labels


def stack(items: list[Any]) -> Any:
    """A batch of samples: torch's own, but dicts may hold lists of numbers, as Hugging Face datasets have them."""
    if not isinstance(items[0], Mapping):
        return default_collate(items)
    names = [name for name, value in items[0].items() if _tensor(value) is not None or name in LABELS]
    return {name: default_collate([_plain(item[name]) for item in items]) for name in names}


def _plain(value: Any) -> Any:
    """A list of numbers as a tensor; a word as it is."""
    return value if isinstance(value, str) else _tensor(value)


def _tensor(value: Any) -> Tensor | None:
    """A column of a batch as a tensor; None for text and other things that no network takes."""
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        return None


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _nested(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)) and any(isinstance(part, (Tensor, np.ndarray)) for part in value):
        return type(value)(_nested(part) for part in value)
    found = _tensor(value)
    if found is None:
        raise InputError(f"the inputs hold a {type(value).__name__}: give tensors or numbers.")
    return found
