"""A small run, and ``ddm explore`` serving it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMALL = "--limit 300 --option width=8 --option depth=2 --epochs 6 --batch-size 32 --clusters 3 --setting bank=40"
DDM = [sys.executable, "-m", "ddm.cli"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fitted(folder: Path) -> Path:
    """A run on digits, made by the command."""
    command = [*DDM, "fit", "digits", *SMALL.split(), "--out", str(folder)]
    subprocess.run(command, check=True, env=os.environ | ONE_THREAD, capture_output=True, timeout=600)
    return folder


@contextmanager
def served(run: Path, **variables: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command, with variables in its environment, and the address it printed; it ends without errors."""
    command = [*DDM, "explore", str(run), "--no-open"]
    environment = os.environ | ONE_THREAD | variables
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        found = re.search(r"http://127\.0\.0\.1:[0-9]+/\S*", process.stdout.readline())
        assert found, process.stderr.read()
        yield process, found[0]
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert errors == ""
