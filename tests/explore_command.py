"""Fits a small run and serves it with ``ddm explore``, both as commands in processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SMALL = "--limit 300 --option width=8 --option depth=2 --epochs 6 --batch-size 32 --clusters 3 --setting bank=40"
DDM = [sys.executable, "-m", "ddm.cli"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fit_run(folder: Path) -> Path:
    """Fit a small run on digits with the ``ddm fit`` command."""
    command = [*DDM, "fit", "digits", *SMALL.split(), "--out", str(folder)]
    subprocess.run(command, check=True, env=os.environ | ONE_THREAD, capture_output=True, timeout=600)
    return folder


@contextmanager
def serve_run(
    run: Path, environment: Mapping[str, str] = os.environ, **variables: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """Run ``ddm explore`` with extra environment variables; yields the process and the address that it printed.

    When the block ends, the command is interrupted and must end without errors. If the block fails, it is killed.
    """
    command = [*DDM, "explore", str(run), "--no-open"]
    environment = {**environment, **ONE_THREAD, **variables}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        match = re.search(r"http://127\.0\.0\.1:[0-9]+/\S*", process.stdout.readline())
        assert match, process.stderr.read()
        try:
            yield process, match[0]
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert errors == ""
