"""What commands answer, and how what is wrong is refused."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from ddm.errors import InputError


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def process(*arguments, cwd):
    """A command in a process of its own."""
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
    return Answer(done.returncode, done.stdout, without_progress(done.stderr))


def without_progress(text):
    """What a command said on standard error, without the lines that it prints every 30 seconds on a busy machine."""
    return "".join(line for line in text.splitlines(keepends=True) if " elapsed, " not in line)


@contextmanager
def refused(*words):
    """The block raises ``InputError`` with one sentence that has all these words."""
    with pytest.raises(InputError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


def refuses(answer, *words):
    """Exit code 2 and one sentence with these words on standard error; nothing else anywhere."""
    assert "Traceback" not in answer.err
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("ddm: ")
    assert answer.err.count("\n") == 1
    assert answer.err.endswith(".\n")
    for word in words:
        assert word in answer.err
