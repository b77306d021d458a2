"""``partition.safetensors``: the group of each training sample, and the samples of each group if groups overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.compute.validation import are_unique_names
from ddm.errors import InputError
from ddm.groups.partition import Partition, first_groups


def save_partition(partition: Partition, path: Path, data: str | None = None) -> None:
    """Write a partition with the fingerprint of its training set."""
    tensors = {"groups": torch.as_tensor(partition.groups)}
    if partition.parents is not None:
        tensors["parents"] = torch.as_tensor(partition.parents)
    if partition.listed is not None:
        tensors["listed"] = torch.as_tensor(np.concatenate(partition.listed))
        tensors["sizes"] = torch.as_tensor(partition.sizes)
    write_tensors(path, tensors, {"names": partition.names, "classes": partition.classes, "data": data})


def load_partition(path: Path) -> Partition:
    """Read the file of ``save_partition``."""
    tensors, metadata = read_tensors(path), read_metadata(path)
    try:
        parents = tensors["parents"].numpy() if "parents" in tensors else None
        groups, names, classes = tensors["groups"].numpy(), tuple(metadata["names"]), tuple(metadata["classes"])
    except (KeyError, TypeError) as error:
        raise InputError(f"'{path}' lacks {error}: restore it or make the run again.") from None
    if not are_unique_names(names) or not are_unique_names(classes):
        raise InputError(f"'{path}' does not name its groups and classes: restore it or make the run again.")
    if "listed" in tensors:
        listed = _listed(tensors["listed"].numpy(), tensors.get("sizes"), len(names), len(groups))
        if listed is None or parents is not None or not _are_indices(groups + 1, len(names) + 1):
            raise InputError(f"'{path}' does not hold the samples of each group: restore it or make the run again.")
        return Partition(first_groups(listed, len(groups)), names, None, classes, listed)
    if not _are_indices(groups, len(names)) or len(np.unique(groups)) != len(names):
        raise InputError(f"'{path}' does not hold a group for each sample: restore it or make the run again.")
    if parents is not None and (len(parents) != len(names) or not _are_indices(parents, len(classes))):
        raise InputError(f"'{path}' does not hold a class for each group: restore it or make the run again.")
    return Partition(groups, names, parents, classes)


def _listed(rows: np.ndarray, sizes: Tensor | None, groups: int, count: int) -> tuple[np.ndarray, ...] | None:
    """The positions of each group's samples; None if they are not sorted positions of ``count`` samples."""
    if sizes is None or sizes.shape != (groups,) or sizes.dtype != torch.int64 or bool((sizes < 1).any()):
        return None
    # As Python's whole numbers: a sum of numpy's could overflow.
    if not _are_indices(rows, count) or sum(sizes.tolist()) != len(rows):
        return None
    listed = tuple(np.split(rows, np.cumsum(sizes.numpy())[:-1]))
    return listed if all((np.diff(part) > 0).all() and len(part) < count for part in listed) else None


def _are_indices(values: np.ndarray, count: int) -> bool:
    """True for a non-empty array ``(n,)`` of integers in ``0 … count − 1``."""
    integers = values.ndim == 1 and values.dtype == np.int64 and len(values) > 0
    return integers and bool(values.min() >= 0 and values.max() < count)
