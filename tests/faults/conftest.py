"""Faults on purpose: kills, full disks, hostile files, many users. ``make test-faults`` runs them and counts."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from _pytest.terminal import TerminalReporter

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


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """How many of each kind were tried, and how many failed."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    terminalreporter.section("faults")
    for kind in sorted({kind for kind, _ in properties}):
        tried, failed = (sum(counts[column] for name, counts in properties if name == kind) for column in (0, 1))
        terminalreporter.write_line(f"{kind}: {tried:,} tried, {failed:,} failed")
