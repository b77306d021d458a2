"""Memory: what this process uses, and limits that are checked before trusting the sizes a file declares."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from ddm.errors import InputError


def check_memory(size: int, what: str, advice: str) -> None:
    """Raise ``InputError`` if ``size`` bytes exceed ``usable_bytes``."""
    if size > usable_bytes():
        raise InputError(f"{what} would need {size / 1e9:,.1f} GB of memory, more than there is: {advice}.")


def resident_bytes() -> int:
    """Memory that this process uses now."""
    rss: int = psutil.Process().memory_info().rss
    return rss


def peak_bytes() -> int:
    """Maximum memory that this process has used so far.

    On Linux ``getrusage`` cannot tell: it starts from the peak of the parent process.
    """
    with contextlib.suppress(OSError, IndexError):  # not Linux, or /proc is hidden
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
def usable_bytes() -> int:
    """Half of the memory that this process may use, because data are copied at least once while they are read."""
    total: int = psutil.virtual_memory().total
    return min([total, *cgroup_limits()]) // 2


def cgroup_limits(root: Path = Path("/")) -> Iterator[int]:
    """Memory limits of this process's control groups, versions 1 and 2, and of the groups above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for controllers, path in (line.split(":", 2)[1:] for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # the file is hidden, or it says "max": no limit
                yield int((root / "sys/fs/cgroup" / top / group / file).read_text())
