"""Files: atomic writes, JSON with checksums, hashes, and checks of paths that come from users.

An atomic write goes to a temporary file that is then renamed, so a file is either complete or absent.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ddm.compute.folders import force_to_disk, locked_folder_in, make_folder
from ddm.errors import InputError

MAX_JSON_BYTES = 2**24
"""Larger JSON files are refused: parsed JSON needs many times the memory of its file."""

CHECKSUM = "checksum"
"""Key under which JSON objects and metadata of tensors hold their checksum."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path. The file there replaces ``path`` if the block succeeds, and is deleted if it fails.

    The temporary file has a folder of its own beside ``path``, because some libraries write extra files next to it.
    After the block, the file survives a power failure.
    """
    with _write_errors_as_input_errors(path):
        make_folder(path.parent)
        with locked_folder_in(path.parent) as folder:
            yield folder / "file"
            _set_default_permissions(folder / "file")
            force_to_disk(folder / "file")
            os.replace(folder / "file", path)
            force_to_disk(path.parent)


@contextlib.contextmanager
def _write_errors_as_input_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        if is_disk_full(error):
            raise InputError(
                f"there is no disk space left to write '{path}': free some and run the same command again."
            ) from None
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write '{path}': {why}; choose another path.") from None


def is_disk_full(error: BaseException) -> bool:
    """True if an error says that the disk is full, or that a quota or the maximum file size is reached."""
    found = re.search(r"\(os error (\d+)\)", str(error)) if isinstance(error, SafetensorError) else None
    number = int(found[1]) if found else getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _set_default_permissions(path: Path) -> None:
    """Give a file the permissions that a new file gets; those of temporary files are stricter."""
    fresh = path.with_name("fresh")
    fresh.touch()
    path.chmod(fresh.stat().st_mode)


def output_path(path: str | os.PathLike[str]) -> Path:
    """``path`` as a ``Path``; an empty string, which would mean the current folder, is refused."""
    if not os.fspath(path):
        raise InputError("the name of the output is empty: give the name of a file or folder.")
    return Path(path)


def is_outside(path: Path, folder: Path) -> bool:
    """True if links lead a path out of a folder, or in circles."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


def file_size(path: Path) -> int:
    """Bytes of a regular file; pipes and devices are refused, because reading them may never end."""
    return regular_file(path).st_size


def regular_file(path: Path) -> os.stat_result:
    """The status of a file; ``InputError`` if it is missing, a pipe or a device."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
        raise InputError(f"'{path}' is not a regular file: replace it.")
    return status


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; ``InputError`` if the file is missing or broken."""
    if file_size(path) > MAX_JSON_BYTES:
        raise InputError(f"'{path}' is larger than any JSON that ddm writes: restore it or make the run again.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"'{path}' is not readable JSON ({why}): restore it or make the run again.") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read JSON that is an object, as a dictionary."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"'{path}' does not hold a JSON object: restore it or make it again.")
    return value


def parse_json(text: str) -> Any:
    """Parse JSON; ``ValueError`` if a string holds half of a surrogate pair, which cannot be printed or written."""
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def add_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a JSON object with its checksum under the key ``checksum``."""
    return {**value, CHECKSUM: _json_checksum(value)}


def has_valid_checksum(value: Mapping[str, Any]) -> bool | None:
    """True if a JSON object still matches its checksum; None if it has none."""
    if CHECKSUM not in value:
        return None
    return bool(value[CHECKSUM] == _json_checksum({key: value[key] for key in value if key != CHECKSUM}))


def _json_checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file's contents."""
    file_size(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None


def check_hash(path: Path, expected: str | None, advice: str) -> None:
    """Refuse a file whose hash differs from the one that the run stores. Each process hashes a file only once."""
    status = regular_file(path)
    if _hash_file_once(path, status.st_ino, status.st_size, status.st_mtime_ns) != expected:
        raise InputError(f"'{path}' is not the file that this run was saved with: {advice}.")


@functools.lru_cache(2**14)
def _hash_file_once(path: Path, _inode: int, _size: int, _modified: int) -> str:
    return hash_file(path)
