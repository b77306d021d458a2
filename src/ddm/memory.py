"""What this machine could hold at all: asked before a file's word is taken for how much it needs."""

from __future__ import annotations

import os

from ddm.errors import InputError


def check_room(size: int, what: str, advice: str) -> None:
    """Refuse what takes more bytes than half of the machine's memory."""
    if size > room():
        raise InputError(f"{what} would take {size / 1e9:,.1f} GB of memory, more than there is: {advice}.")


def room() -> int:
    """Half of the machine's memory, in bytes: what is read is copied at least once."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
