"""Room: how much visitors may add to folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from ddm.errors import InputError


class Room:
    """Folders of a run that visitors may add to, so many bytes since it was opened."""

    def __init__(self, folders: Sequence[Path], most: int) -> None:
        self.folders, self.most = folders, most
        self._before = self._taken()

    def check(self) -> None:
        """Refuse to add anything more where visitors have added enough."""
        if self._taken() - self._before >= self.most:
            where = " and ".join(folder.name for folder in self.folders)
            raise InputError(
                f"{self.most / 2**30:.3g} GB of models were added to {where} in the run's folder since the page was "
                "opened, and no more are kept: delete some there, or end ddm explore and start it again."
            )

    def _taken(self) -> int:
        return sum(taken(folder) for folder in self.folders)


def taken(folder: Path) -> int:
    """Bytes of all files and folders in a folder. What is removed meanwhile counts nothing."""
    total = 0
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
