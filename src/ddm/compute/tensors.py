"""Tensors in safetensors files, with metadata and a checksum. ddm never reads or writes pickles of tensors."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddm.compute.files import CHECKSUM, atomic_write, file_size, parse_json, regular_file
from ddm.errors import InputError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors as safetensors, and ``metadata`` with a checksum as JSON under the key ``ddm``."""
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checked = {**(metadata or {}), CHECKSUM: _checksum(contents, metadata or {})}
    with atomic_write(path) as temporary:
        # safetensors writes several entries in any order. One entry makes the same contents give the same bytes.
        save_file(contents, temporary, metadata={"ddm": json.dumps(checked, sort_keys=True)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file; ``InputError`` if it is missing or broken."""
    with _read_errors_as_input_errors(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def read_finite(path: Path, advice: str = "restore it or make the run again") -> dict[str, Tensor]:
    """Read every tensor of a safetensors file and refuse NaN and infinite values."""
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise InputError(f"'{path}' holds NaN or infinite values in {name}: {advice}.")
    return tensors


def read_intact(path: Path, advice: str) -> dict[str, Tensor]:
    """Read every tensor of a file that matches its checksum, and refuse NaN and infinite values."""
    check_intact(path, advice)
    return read_finite(path, advice)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the metadata of a safetensors file without its tensors."""
    metadata = _read_checked_metadata(path)
    metadata.pop(CHECKSUM, None)
    return metadata


def is_finite(tensor: Tensor) -> bool:
    """False if a value is NaN or infinite, or if the type has less than 16 bits or is complex: ddm writes neither."""
    if not tensor.is_floating_point():
        return not tensor.is_complex()
    return tensor.dtype.itemsize > 1 and bool(tensor.isfinite().all())


def is_intact(path: Path) -> bool | None:
    """True if a safetensors file matches its checksum; None if it has none."""
    metadata = _read_checked_metadata(path)
    expected = metadata.pop(CHECKSUM, None)
    return None if expected is None else bool(expected == _checksum(read_tensors(path), metadata))


def check_intact(path: Path, advice: str) -> None:
    """Refuse a safetensors file that does not match its checksum. Each process checks a file only once."""
    status = regular_file(path)
    try:
        intact = _is_intact_once(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except InputError:
        intact = False
    if intact is False:
        raise InputError(f"'{path}' has changed since it was written: {advice}.")


@functools.lru_cache(2**14)
def _is_intact_once(path: Path, _inode: int, _size: int, _modified: int) -> bool | None:
    return is_intact(path)


def _read_checked_metadata(path: Path) -> dict[str, Any]:
    """The metadata with its checksum."""
    with _read_errors_as_input_errors(path), safe_open(path, framework="pt") as file:
        metadata: dict[str, Any] = parse_json((file.metadata() or {}).get("ddm", "{}"))
        if not isinstance(metadata, dict):
            raise ValueError("its metadata are not a JSON object")
    return metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextlib.contextmanager
def _read_errors_as_input_errors(path: Path) -> Iterator[None]:
    file_size(path)
    try:
        yield
    except (SafetensorError, ValueError, OSError, RecursionError, MemoryError, RuntimeError, OverflowError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"cannot read '{path}' ({why}): restore it or make the run again.") from None
