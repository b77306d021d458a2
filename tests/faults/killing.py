"""Commands in real processes that can be killed with all they started, forked from one that has imported everything."""

import atexit
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from ddm.cli import main as cli
from ddm.compute.files import read_json
from ddm.compute.tensors import read_tensors
from ddm.networks.state import hash_of_state

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["ddm.cli", "ddm.bench.methods", "torch._dynamo", "sklearn.cluster", "pytest"])

TIMES = {"seconds", "trainings", "query_ms", "seconds of one training", "summary.json", "checksum"}
"""What is measured by a clock, in files of results, and checksums of such files."""


def _command(arguments, folder):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start in the background ignore it
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    sys.argv = ["ddm", *arguments]
    try:
        cli.main()
    finally:
        threading._shutdown()  # as a process ends that is no fork: it ends its workers before it waits for them
        atexit._run_exitfuncs()


class Command:
    """A command that runs in ``folder``, and says there in ``log`` what it has to say."""

    def __init__(self, arguments, folder):
        self.started = time.monotonic()
        self.process = _forks.Process(target=_command, args=(arguments.split(), folder))
        self.process.start()

    def end(self):
        """Wait for it; its exit code."""
        self.process.join(600)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode

    def kill(self):
        """End it and every process that it started, as a kernel does; whether it was still running."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet, or has ended
            self.process.kill()
        return self.end() == -signal.SIGKILL


def group(leader):
    """The processes of a group that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(its) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def results(folder):
    """The content of each file that a command wrote to a folder, without measured times."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "log"]
    return {str(path.relative_to(folder)): _content(path) for path in files}


def _content(path):
    if path.name == "seconds.json" or path.suffix == ".md":
        return None
    if path.suffix == ".json":
        return timeless(read_json(path))
    return hash_of_state(read_tensors(path)) if path.parent.name == "exact" else path.read_bytes()


def timeless(value):
    """JSON without what clocks measured."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def fresh(folder, template=None):
    """An empty folder, or a copy of one, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    if template is None:
        folder.mkdir()
    else:
        shutil.copytree(template, folder)
