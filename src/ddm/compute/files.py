"""Files that are either whole or absent: written under a temporary name, then renamed. No pickle."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddm.errors import InputError

_TEMPORARY = ".ddm-"
"""How the folders begin that files are written in before they are whole."""

_MARK = ".made-by-ddm"
"""Empty file in temporary folders of this program: folders of the same name without it are never deleted."""

MOST_JSON = 2**24
"""Bytes of JSON that are read: what is read takes many times as much memory."""

_CHECKSUM = "checksum"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of ``path`` if the block succeeds, else disappears.

    It lies in a folder of its own beside ``path``: some libraries write under further names. Once the block has ended,
    the file is there even if the power fails.
    """
    with _writing(path):
        make_folder(path.parent)
        folder, handle = _held_folder(path.parent)
        try:
            yield folder / "file"
            _flush(folder / "file")
            os.replace(folder / "file", path)
            _sync(path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder in the system's temporary directory that is deleted when the block ends.

    First, folders with the same prefix are deleted if an earlier process of this user made them here and was killed.
    The kernel released their locks; the folder of a process that still runs stays locked.
    """
    place = Path(tempfile.gettempdir())
    for earlier in place.glob(f"{prefix}*"):
        if (earlier / _MARK).is_file() and not earlier.is_symlink() and earlier.stat().st_uid == os.getuid():
            _remove_abandoned(earlier)
    folder, handle = _held_folder(place, prefix)
    try:
        (folder / _MARK).touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder that another process works in, and remove what killed ones left half-written.

    The kernel lets go of the folder when the process ends, however it does.
    """
    with _opened(folder) as handle:
        if _hold(handle) is False:
            raise InputError(f"another ddm is working in '{folder}': wait for its end, or choose another folder.")
        for place, names, _ in os.walk(folder):
            for name in names:
                if name.startswith(_TEMPORARY) and not Path(place, name).is_symlink():
                    _remove_abandoned(Path(place, name))
        yield


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, to be there even if the power fails."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        _sync(each.parent)


def named(path: str | os.PathLike[str]) -> Path:
    """``path`` as a ``Path``; an empty text, which would mean the current folder, is refused."""
    if not os.fspath(path):
        raise InputError("the name of the output is empty: give the name of a file or folder.")
    return Path(path)


def check_empty(folder: Path, kind: str, allowed: Collection[str] = ()) -> None:
    """Refuse a folder that holds files of somebody else, before ddm deletes or overwrites some of them.

    kind:    what the folder should be, in messages
    allowed: names that may be there; what killed writes of ddm leave may always be
    """
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if name not in allowed and not name.startswith(_TEMPORARY):
            raise InputError(f"'{folder}' is not {kind} and already holds '{name}': choose a new or an empty folder.")


def no_room(error: BaseException) -> bool:
    """Whether an error says that a disk is full, or a quota or the largest size of a file reached."""
    found = re.search(r"\(os error (\d+)\)", str(error)) if isinstance(error, SafetensorError) else None
    number = int(found[1]) if found else getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        if no_room(error):
            raise InputError(
                f"there is no room left to write '{path}': free some and give the same command again."
            ) from None
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write '{path}': {why}; choose another place.") from None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _hold(handle: int) -> bool | None:
    """Keep a folder to oneself until it is closed; False where someone else does, None where that cannot be told."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # as on some network file systems
        return None
    return True


def _held_folder(place: Path, prefix: str = _TEMPORARY) -> tuple[Path, int]:
    """A new temporary folder and what holds it: another one if it was taken for abandoned before it was held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            if _hold(handle) is not False and folder.exists():
                return folder, handle
            os.close(handle)


def _remove_abandoned(folder: Path) -> None:
    """Remove a temporary folder if nobody is writing in it."""
    with contextlib.suppress(FileNotFoundError), _opened(folder) as handle:
        if _hold(handle):
            shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    """Force the bytes to disk, and give the file the permissions an ordinary one would have."""
    ordinary = path.with_name("ordinary")
    ordinary.touch()
    path.chmod(ordinary.stat().st_mode)
    _sync(path)


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk; some file systems do not take folders."""
    with _opened(path) as handle:
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL or not path.is_dir():
                raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; ``InputError`` where the file is missing or broken."""
    if size_of(path) > MOST_JSON:
        raise InputError(f"'{path}' is larger than any JSON that ddm writes: restore it or make the run again.")
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"'{path}' is not readable JSON ({why}): restore it or make the run again.") from None


def read_table(path: Path) -> dict[str, Any]:
    """Read JSON that is a table of names and values."""
    table = read_json(path)
    if not isinstance(table, dict):
        raise InputError(f"'{path}' does not hold a table of names and values: restore it or make it again.")
    return table


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of JSON values with its checksum, by which ``is_sealed`` tells whether it has changed since."""
    return {**table, _CHECKSUM: _table_checksum(table)}


def is_sealed(table: Mapping[str, Any]) -> bool | None:
    """Whether a table is as it was ``sealed``; None where it was not."""
    if _CHECKSUM not in table:
        return None
    return bool(table[_CHECKSUM] == _table_checksum({key: table[key] for key in table if key != _CHECKSUM}))


def _table_checksum(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _parsed(text: str) -> Any:
    """JSON, refused where it holds half a character: such text cannot be printed or written again."""
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def leads_out(path: Path, home: Path) -> bool:
    """Whether a path leads out of a folder by links, or nowhere as they go round in circles."""
    try:
        return not path.resolve().is_relative_to(home.resolve())
    except (OSError, RuntimeError):
        return True


def size_of(path: Path) -> int:
    """Bytes of an ordinary file; pipes and devices, which need not end, are refused."""
    return _ordinary(path).st_size


def _ordinary(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
        raise InputError(f"'{path}' is not an ordinary file: replace it.")
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors as safetensors; ``metadata`` is kept as JSON under the key ``ddm``."""
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**(metadata or {}), _CHECKSUM: _checksum(contents, metadata or {})}
    with replacing(path) as temporary:
        # One entry: several would come in any order, and the same contents must give the same bytes.
        save_file(contents, temporary, metadata={"ddm": json.dumps(facts, sort_keys=True)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file; ``InputError`` where it is missing or broken."""
    with _readable(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def read_finite(path: Path, cure: str = "restore it or make the run again") -> dict[str, Tensor]:
    """Read every tensor of a safetensors file and refuse NaN and infinite values."""
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise InputError(f"'{path}' holds NaN or infinite values in {name}: {cure}.")
    return tensors


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; types of less than 16 bits, which ddm never writes, count as if one was."""
    if not tensor.is_floating_point():
        return not tensor.is_complex()
    return tensor.dtype.itemsize > 1 and bool(tensor.isfinite().all())


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the JSON metadata of a safetensors file without its tensors."""
    metadata = _read_facts(path)
    metadata.pop(_CHECKSUM, None)
    return metadata


def _read_facts(path: Path) -> dict[str, Any]:
    with _readable(path), safe_open(path, framework="pt") as file:
        metadata: dict[str, Any] = _parsed((file.metadata() or {}).get("ddm", "{}"))
        if not isinstance(metadata, dict):
            raise ValueError("its metadata are not a table")
    return metadata


def is_whole(path: Path) -> bool | None:
    """Whether a safetensors file holds what ``write_tensors`` wrote; None where it does not say what that was."""
    facts = _read_facts(path)
    known = facts.pop(_CHECKSUM, None)
    return None if known is None else bool(known == _checksum(read_tensors(path), facts))


def check_whole(path: Path, cure: str) -> None:
    """Refuse a safetensors file that is not as it was written; each is read through for this once a process."""
    found = _ordinary(path)
    try:
        whole = _is_whole_since(path, found.st_ino, found.st_size, found.st_mtime_ns)
    except InputError:
        whole = False
    if whole is False:
        raise InputError(f"'{path}' is not as it was written: {cure}.")


def check_hash(path: Path, known: str | None, cure: str) -> None:
    """Refuse a file whose contents do not have the hash that a run was saved with; read once a process for this."""
    found = _ordinary(path)
    if _hash_since(path, found.st_ino, found.st_size, found.st_mtime_ns) != known:
        raise InputError(f"'{path}' is not the file that this run was saved with: {cure}.")


@functools.lru_cache(2**14)
def _hash_since(path: Path, _number: int, _size: int, _changed: int) -> str:
    return hash_of(path)


def read_whole(path: Path, cure: str) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file that is as it was written, and refuse NaN and infinite values."""
    check_whole(path, cure)
    return read_finite(path, cure)


@functools.lru_cache(2**14)
def _is_whole_since(path: Path, _number: int, _size: int, _changed: int) -> bool | None:
    return is_whole(path)


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    size_of(path)
    try:
        yield
    except (SafetensorError, ValueError, OSError, RecursionError, MemoryError, RuntimeError, OverflowError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"cannot read '{path}' ({why}): restore it or make the run again.") from None


def hash_of(path: Path) -> str:
    """Hash of a file's contents."""
    size_of(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}.") from None
