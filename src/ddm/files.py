"""Files that are either whole or absent: written under a temporary name, then renamed. No pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddm.errors import InputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place if the block succeeds, else disappears."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with _writing(path):
            _flush(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write '{path}': {why}; choose another place.") from None


def _flush(path: Path) -> None:
    """Force the bytes to disk, and give the file the permissions an ordinary one would have."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON."""
    with replacing(path) as temporary, _writing(path):
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; ``InputError`` where the file is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"'{path}' is not readable JSON ({error}): restore it or make the run again.") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors as safetensors; ``metadata`` is kept as JSON under the key ``ddm``."""
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary, _writing(path):
        save_file(contents, temporary, metadata={"ddm": json.dumps(metadata or {}, sort_keys=True)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file; ``InputError`` where it is missing or broken."""
    with _readable(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the JSON metadata of a safetensors file without its tensors."""
    with _readable(path), safe_open(path, framework="pt") as file:
        metadata: dict[str, Any] = json.loads((file.metadata() or {}).get("ddm", "{}"))
    return metadata


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"cannot read '{path}' ({error}): restore it or make the run again.") from None


def hash_of(path: Path) -> str:
    """Hash of a file's contents."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None
