"""Folders: locks against two processes at once, temporary folders, and checks before a folder is written to.

A lock is ``flock`` on the folder itself. The kernel releases it when the process ends, even if the process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from ddm.errors import InputError

_PREFIX = ".ddm-"
"""Prefix of the folders that hold files while they are written."""

_MARK = ".made-by-ddm"
"""Empty file that marks a temporary folder as ours: folders with the same prefix but no mark are never deleted."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block, and first delete unfinished files of processes that were killed.

    Raises ``InputError`` if another process holds the lock.
    """
    with _open(folder) as handle:
        if _lock(handle) is False:
            raise InputError(f"another ddm is working in '{folder}': wait until it ends, or choose another folder.")
        for parent, names, _ in os.walk(folder):
            for name in names:
                if name.startswith(_PREFIX) and not Path(parent, name).is_symlink():
                    _delete_if_abandoned(Path(parent, name))
        yield


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder in the system's temporary directory that is deleted when the block ends.

    First, folders with the same prefix are deleted if an earlier process of this user made them here and was killed.
    The folder of a process that still runs stays locked.
    """
    parent = Path(tempfile.gettempdir())
    for earlier in parent.glob(f"{prefix}*"):
        if (earlier / _MARK).is_file() and not earlier.is_symlink() and earlier.stat().st_uid == os.getuid():
            _delete_if_abandoned(earlier)
    with locked_folder_in(parent, prefix) as folder:
        (folder / _MARK).touch()
        yield folder


@contextlib.contextmanager
def locked_folder_in(parent: Path, prefix: str = _PREFIX) -> Iterator[Path]:
    """A new locked folder in ``parent`` that is deleted when the block ends."""
    folder, handle = _make_locked(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and force them to disk so that they survive a power failure."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        force_to_disk(each.parent)


def check_empty(folder: Path, kind: str, allowed: Collection[str] = ()) -> None:
    """Refuse a folder with files that are not ours, before ddm deletes or overwrites some of them.

    kind:    what the folder should be, for the message
    allowed: names of files that may be there; unfinished files of ddm are always allowed
    """
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if name not in allowed and not name.startswith(_PREFIX):
            raise InputError(f"'{folder}' is not {kind} and already holds '{name}': choose a new or an empty folder.")


def force_to_disk(path: Path) -> None:
    """Call fsync on a file or folder; file systems that cannot sync folders are tolerated."""
    with _open(path) as handle:
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL or not path.is_dir():
                raise


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """True if this process now holds the lock, False if another does, None if the file system has no locks."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return None
    return True


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the handle that locks it.

    Another process may delete the folder as abandoned before it is locked; then a new one is made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            if _lock(handle) is not False and folder.exists():
                return folder, handle
            os.close(handle)


def _delete_if_abandoned(folder: Path) -> None:
    """Delete a temporary folder unless the process that made it still holds its lock."""
    with contextlib.suppress(FileNotFoundError), _open(folder) as handle:
        if _lock(handle):
            shutil.rmtree(folder, ignore_errors=True)
