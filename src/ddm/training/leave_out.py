"""A DataLoader without some samples that is otherwise the same: for retraining by the user's own training loop."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ddm.errors import InputError

_COPIED = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
"""Options of a DataLoader that the new one takes over. Older versions of torch lack some of them."""


def leave_out(loader: DataLoader[Any], rows: Sequence[int] | np.ndarray | Tensor) -> DataLoader[Any]:
    """A loader with the batches of ``loader`` in the same order, but without the samples at ``rows``.

    rows: positions in the dataset, or a mask ``(n,)`` that is True for the samples to leave out

    The new loader draws the same random numbers as the old one: it shuffles alike, and random transforms of the
    dataset give the remaining samples the same values. For this it reads the samples at ``rows`` too, and drops them
    before they are collated. Both loaders share their sampler and generator.

    A batch that loses all its samples is skipped, so that no optimizer step is taken on an empty batch. ``len`` of the
    new loader still counts it.
    """
    check_loader(loader)
    return Remaining(loader, rows)


def check_loader(loader: DataLoader[Any]) -> None:
    """Refuse loaders whose samples have no positions, or whose batches this module cannot follow."""
    if not isinstance(loader, DataLoader):
        raise InputError(f"leave_out needs a DataLoader, not {type(loader).__name__}: give the one of your loop.")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise InputError(
            "samples of an IterableDataset have no positions, so none can be left out: use a dataset with a length "
            "and an index."
        )
    if loader.batch_sampler is None:
        raise InputError("leave_out needs a loader that makes batches: give it a batch_size or a batch_sampler.")
    if type(loader).__iter__ not in (DataLoader.__iter__, Remaining.__iter__):
        raise InputError(f"{type(loader).__name__} has an __iter__ of its own: use a plain DataLoader.")


def _mask(rows: Sequence[int] | np.ndarray | Tensor, count: int) -> np.ndarray:
    """A mask ``(count,)`` that is True for the samples to leave out."""
    given = np.asarray(rows)
    mask = np.zeros(count, dtype=bool)
    if given.dtype == bool and given.shape == mask.shape:
        mask = given.copy()
    elif given.ndim == 1 and (given.dtype.kind in "iu" or not given.size):
        if given.size and (given.min() < 0 or given.max() >= count):
            raise InputError(f"the dataset has {count} samples: give positions to leave out from 0 to {count - 1}.")
        mask[given.astype(np.int64)] = True
    else:
        raise InputError(f"rows must be positions of samples, or a mask with one value for each of {count} samples.")
    if mask.all():
        raise InputError(f"all {count} samples are left out: keep at least one to train on.")
    return mask


class _LeftOut:
    """Takes the place of a sample that is left out, and of a batch without samples. Processes know it by its name."""


class Remaining(DataLoader[Any]):
    """The batches of another loader without some samples.

    empty: what takes the place of a batch that loses all its samples; None skips it
    """

    def __init__(self, loader: DataLoader[Any], rows: Sequence[int] | np.ndarray | Tensor, empty: Any = None) -> None:
        self._empty = empty
        options = {name: getattr(loader, name) for name in _COPIED if hasattr(loader, name)}
        if loader.batch_size is None:
            options |= {"batch_sampler": loader.batch_sampler}
        else:
            options |= {"sampler": loader.sampler, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
        marked = _Marked(loader.dataset, _mask(rows, len(loader.dataset)))  # type: ignore[arg-type]
        super().__init__(marked, collate_fn=_Collate(loader.collate_fn), **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # torch draws random numbers when the iterator is made, so this must not wait for the first batch.
        batches = super().__iter__()
        if self._empty is None:
            return filter(_is_kept, batches)
        return (batch if _is_kept(batch) else self._empty for batch in batches)


@dataclass(frozen=True, eq=False)
class _Marked(Dataset[Any]):
    """A dataset that gives ``_LeftOut`` at the positions of a mask. It reads these samples, too."""

    dataset: Any
    left_out: np.ndarray

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        # A sampler may yield tensors, which a set would compare by identity; operator.index makes them numbers.
        whole = getattr(self.dataset, "__getitems__", None)
        items = whole(indices) if whole else [self.dataset[index] for index in indices]
        marked = [bool(self.left_out[operator.index(index)]) for index in indices]
        return [_LeftOut if gone else item for item, gone in zip(items, marked, strict=True)]


@dataclass(frozen=True, eq=False)
class _Collate:
    """Collates the samples of a batch that are not left out; gives ``_LeftOut`` if there are none."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, items: list[Any]) -> Any:
        kept = [item for item in items if _is_kept(item)]
        return self.collate(kept) if kept else _LeftOut


def _is_kept(value: object) -> bool:
    return value is not _LeftOut
