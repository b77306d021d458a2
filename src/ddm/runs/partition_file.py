"""``partition.safetensors``: the group of each training sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.compute.validation import are_unique_names
from ddm.errors import InputError
from ddm.groups.partition import Partition


def save_partition(partition: Partition, path: Path, data: str | None = None) -> None:
    """Write a partition with the fingerprint of its training set."""
    tensors = {"groups": torch.as_tensor(partition.groups)}
    if partition.parents is not None:
        tensors["parents"] = torch.as_tensor(partition.parents)
    write_tensors(path, tensors, {"names": partition.names, "classes": partition.classes, "data": data})


def load_partition(path: Path) -> Partition:
    """Read the file of ``save_partition``."""
    tensors, metadata = read_tensors(path), read_metadata(path)
    try:
        parents = tensors["parents"].numpy() if "parents" in tensors else None
        groups, names, classes = tensors["groups"].numpy(), tuple(metadata["names"]), tuple(metadata["classes"])
    except (KeyError, TypeError) as error:
        raise InputError(f"'{path}' lacks {error}: restore it or make the run again.") from None
    named = are_unique_names(names) and are_unique_names(classes)
    if not named or not _are_indices(groups, len(names)) or len(np.unique(groups)) != len(names):
        raise InputError(f"'{path}' does not hold a group for each sample: restore it or make the run again.")
    if parents is not None and (len(parents) != len(names) or not _are_indices(parents, len(classes))):
        raise InputError(f"'{path}' does not hold a class for each group: restore it or make the run again.")
    return Partition(groups, names, parents, classes)


def _are_indices(values: np.ndarray, count: int) -> bool:
    """True for a non-empty array ``(n,)`` of integers in ``0 … count − 1``."""
    integers = values.ndim == 1 and values.dtype == np.int64 and len(values) > 0
    return integers and bool(values.min() >= 0 and values.max() < count)
