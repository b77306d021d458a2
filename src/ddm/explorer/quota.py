"""Quota: how many bytes visitors may add to some folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from ddm.errors import InputError


class Quota:
    """Limits what visitors add to some folders of a run to ``limit`` bytes, counted from now on."""

    def __init__(self, folders: Sequence[Path], limit: int) -> None:
        self.folders, self.limit = folders, limit
        self._bytes_before = self._bytes_now()

    def check(self) -> None:
        """Raise ``InputError`` if the limit is reached."""
        if self._bytes_now() - self._bytes_before >= self.limit:
            where = " and ".join(folder.name for folder in self.folders)
            raise InputError(
                f"visitors have added {self.limit / 2**30:.3g} GB of models to {where} in the run's folder, which is "
                "the limit: delete some there, or restart ddm explore."
            )

    def _bytes_now(self) -> int:
        return sum(folder_bytes(folder) for folder in self.folders)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files and folders in a folder. Files that vanish during the count are skipped."""
    total = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total
