"""Faults on purpose: kills, full disks, hostile files, many users; they are counted.

``make test-faults`` tries all of them, ``make test-slow`` some.
"""

import resource
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from fuzzing import Hang

import ddm
import ddm.runs.run
from ddm.runs import store
from ddm.runs.config import Config
from ddm.truth.audit import Audit
from ddm.truth.figures import FIGURES

Attempt = Callable[..., AbstractContextManager[None]]

_SHOWN = 3
"""Failures that are shown whole."""


@pytest.fixture
def attempt(record_property: Callable[[str, object], None]) -> Iterator[Attempt]:
    """``with attempt("kills"):`` around each fault. All are tried; the test ends in an error if any failed.

    ``attempt("inputs", 1000)`` counts a thousand at once, of which one may fail.
    """
    tried, failed, errors = Counter[str](), Counter[str](), list[str]()

    @contextmanager
    def attempt(kind: str, count: int = 1) -> Iterator[None]:
        tried[kind] += count
        try:
            yield
        except (Exception, pytest.fail.Exception):
            failed[kind] += 1
            errors.append(traceback.format_exc())

    yield attempt
    for kind, count in tried.items():
        record_property(kind, [count, failed[kind]])
    if errors:
        pytest.fail(f"{len(errors)} of {tried.total()} failed:\n" + "\n".join(errors[:_SHOWN]), pytrace=False)


@pytest.fixture
def stopped() -> Iterator[None]:
    """An input that hangs is interrupted, and gets no more memory than a small machine has."""

    def hang(*_: object) -> None:
        raise Hang("it hangs")

    before, limits = signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + 4 * 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ddm-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def tiny() -> ddm.Data:
    return ddm.datasets.load("digits", limit=24)


@pytest.fixture(scope="module")
def tiny_run(tiny, tmp_path_factory) -> Path:
    """A run of a network of a hundred parameters."""
    run = tmp_path_factory.mktemp("run")
    config = Config(
        limit=24,
        options={"width": 2, "depth": 1, "pooling": "max"},
        recipe=ddm.Recipe(epochs=1, batch_size=24, momentum=0.5),
        clusters=1,
        settings=ddm.Settings(curvature=8, bank=2),
    )
    datamodel, _, _ = ddm.runs.run.fit(config, run, "serial")
    ddm.runs.run.refine(run, datamodel, retrain=2, engine="serial")
    figures = {name: {"value": 0.5, "low": 0.1, "high": 0.9, "retrain": 0.8, "ceiling": None} for name in FIGURES}
    store.save_audit(Audit({"same run": figures}, ("0", "1"), 2, 2, (3, 4), 6, 0.1), run)
    return run


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print how many faults of each kind were tried, and how many tests failed."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    terminalreporter.section("faults")
    for kind in sorted({kind for kind, _ in properties}):
        tried, failed = (sum(counts[column] for name, counts in properties if name == kind) for column in (0, 1))
        terminalreporter.write_line(f"{kind}: {tried:,} tried, {failed:,} failed")
