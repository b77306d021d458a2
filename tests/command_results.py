"""The output and the exit code of commands that run in a process of their own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one line of JSON that a successful command printed."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def run_command(*arguments, cwd):
    """Run ``ddm`` with these arguments in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "ddm.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
        timeout=600,
    )
    return CommandResult(done.returncode, done.stdout, without_progress(done.stderr))


def without_progress(text):
    """Standard error without the progress lines that a command prints every 30 seconds on a busy machine."""
    return "".join(line for line in text.splitlines(keepends=True) if " elapsed, " not in line)
