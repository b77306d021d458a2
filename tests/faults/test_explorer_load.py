"""Up to fifty visitors of ``ddm explore`` for two minutes: each gets its own answers, and memory does not grow."""

import io
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest
from explore_command import fit_run, serve_run
from explorer_visitor import Visitor, logged_in, probabilities
from fuzzing import some
from PIL import Image

from ddm.explorer import influences, removal
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.query import write_query
from ddm.explorer.question import pose_question
from ddm.explorer.state import State
from ddm.runs.run import open_run

SESSIONS, SECONDS = some(50, 8), some(120, 40)
IMAGES = 6
MOST_GROWTH = 32 * 2**20
"""Bytes by which the second half of the time may be above the first: what Python's allocator moves about."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Expected:
    """The answer to a question, computed alone."""

    before: list[float]
    after: list[float]
    group: str


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return fit_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture
def server(run):
    with serve_run(run) as found:
        yield found


def questions(run) -> dict[State, Expected]:
    """Some questions with the answer to each."""
    names = run.datamodel.partition.names
    kinds = [
        State(show="all"),
        State(show="all", objective="loss", remove=(names[0],)),
        State(show="all", objective="logits", output="8", remove=(names[3], names[7])),
        State(show="all", objective="prediction", remove=tuple(names[:5])),
    ]
    states = [replace(kind, index=index) for kind in kinds for index in range(IMAGES)]
    return {state: _alone(run, state) for state in states}


def _alone(run, state) -> Expected:
    question = pose_question(run, state)
    found = removal.predict(run, state, question)
    return Expected(found.before.tolist(), found.after.tolist(), influences.trace_answer(run, state, question).group)


class Session:
    """One visit. ``failures`` has an error, or None, for each question that was question."""

    def __init__(self, site, expected, pictures, seed) -> None:
        self.site, self.expected, self.pictures = site, expected, pictures
        self.random = random.Random(seed)
        self.failures: list[Exception | None] = []

    def last(self, until: float) -> None:
        """Ask until a time has come, with the stream open that tells the server of the visit."""
        with logged_in(self.site) as client:
            visitor = Visitor(client)
            with client.stream("GET", f"/gradio_api/heartbeat/{visitor.hash}"):
                while time.monotonic() < until:
                    try:
                        self._ask(visitor)
                        self.failures.append(None)
                    except Exception as error:
                        self.failures.append(error)

    def _ask(self, visitor) -> None:
        state = self.random.choice(list(self.expected))
        self._check(state, visitor.open(write_query(state)))
        state = replace(state, index=(state.index + self.random.randrange(1, IMAGES)) % IMAGES)
        self._check(state, visitor.use("ddm-index", "submit", state.index))
        assert self.expected[state].group in visitor.order()["ddm-samples"]
        number = self.random.randrange(len(self.pictures))
        parts = visitor.drop(self.pictures[number])
        assert "your picture" in parts["ddm-image"]
        self._check_values(self.expected[replace(state, index=number)], parts)

    def _check(self, state, parts) -> None:
        assert parts["ddm-query"] == write_query(state)
        assert f"test image {state.index}" in parts["ddm-image"]
        assert f"data-group='{self.expected[state].group}'" in parts["ddm-trail"]
        self._check_values(self.expected[state], parts)

    def _check_values(self, expected, parts) -> None:
        assert probabilities(parts, "before") == pytest.approx(expected.before, abs=1e-5)
        assert probabilities(parts, "after") == pytest.approx(expected.after, abs=1e-5)


def _picture(raw) -> bytes:
    file = io.BytesIO()
    Image.fromarray(raw[0].numpy()).save(file, "PNG")
    return file.getvalue()


def _resident(process) -> int:
    """Bytes of memory of a process."""
    pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_many_sessions_get_their_own_answers_and_memory_does_not_grow(run, server, attempt):
    process, site = server
    run = ExploredRun(run, *open_run(run))
    expected = questions(run)
    pictures = [_picture(run.data.test.raw[index]) for index in range(IMAGES)]
    sessions = [Session(site, expected, pictures, seed) for seed in range(SESSIONS)]
    ended, resident = threading.Event(), []
    with ThreadPoolExecutor(SESSIONS) as pool:
        until = time.monotonic() + SECONDS
        lasting = [pool.submit(session.last, until) for session in sessions]
        while time.monotonic() < until:
            resident.append(_resident(process))
            ended.wait(1)
    for session, lasted in zip(sessions, lasting, strict=True):
        with attempt("sessions"):
            lasted.result()
            assert session.failures
        for failure in session.failures:
            with attempt("questions of sessions"):
                if failure is not None:
                    raise failure
    half = len(resident) // 2
    first, second = median(resident[:half]), median(resident[half:])
    print(f"resident: {first / 2**20:.0f} MB, then {second / 2**20:.0f} MB")
    assert second - first < MOST_GROWTH, [value // 2**20 for value in resident]
