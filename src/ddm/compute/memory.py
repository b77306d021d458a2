"""What this machine could hold at all, asked before a file's word is taken for it, and what this process holds."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from ddm.errors import InputError


def check_room(size: int, what: str, advice: str) -> None:
    """Refuse what takes more bytes than half of the memory."""
    if size > room():
        raise InputError(f"{what} would take {size / 1e9:,.1f} GB of memory, more than there is: {advice}.")


def resident() -> int:
    """Bytes that this process takes; where the system does not say, those at its largest."""
    return _status("VmRSS")


def peak() -> int:
    """Bytes that this process took at its largest."""
    return _status("VmHWM")


def _status(field: str) -> int:
    """A size of this process alone: what the system calls its largest counts that of the process it came from too."""
    with contextlib.suppress(OSError, IndexError):  # other systems, and those that do not tell
        return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split(maxsplit=1)[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@functools.cache
def room() -> int:
    """Half of the memory that this process may have, in bytes: what is read is copied at least once."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits()) // 2


def limits(root: Path = Path("/")) -> Iterator[int]:
    """What the control groups of this process and those above them allow, in bytes: of version 2, and of version 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for kinds, place in (line.split(":", 2)[1:] for line in groups):
        if kinds and "memory" not in kinds.split(","):
            continue
        top, file = ("memory", "memory.limit_in_bytes") if kinds else ("", "memory.max")
        inside = Path(place.lstrip("/"))
        for group in (inside, *inside.parents):
            with contextlib.suppress(OSError, ValueError):  # groups are often hidden, and "max" is no limit
                yield int((root / "sys/fs/cgroup" / top / group / file).read_text())
