"""Progress: a bar on a terminal, lines in a log, and nothing for short work."""

import io
import sys
import threading

import pytest

from ddm.compute import progress


class Log(io.StringIO):
    """Standard error that is no terminal, and says when a line has come."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def flush(self):
        self.written.set()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def logging(monkeypatch):
    """Standard error as a log. No fixture: pytest puts its own in place when the test begins."""
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    return log


def test_a_line_shows_the_count_the_elapsed_time_and_the_time_left():
    assert progress.format_line("distilling groups", 40, 100, 80) == (
        "distilling groups: 40 of 100, 1 min elapsed, 2 min left"
    )
    assert progress.format_line("training", 500, 2000, 3600) == "training: 500 of 2,000, 60 min elapsed, 3.0 h left"


def test_a_fractional_total_is_shown_in_percent():
    assert progress.format_line("matching", 2.5e9, 1e10, 30) == "matching: 25%, 30 s elapsed, 2 min left"


def test_before_the_first_step_the_time_left_is_unknown():
    assert progress.format_line("training", 0, 10, 30) == "training: 0 of 10, 30 s elapsed, time left not known yet"


def test_a_log_gets_whole_lines(monkeypatch):
    log = logging(monkeypatch)
    monkeypatch.setattr(progress, "_INTERVAL", 0.001)
    with progress.bar("training", 4) as advance:
        advance(1)
        log.written.clear()
        assert log.written.wait(60)
    lines = log.getvalue().splitlines()
    assert lines[-1].startswith("training: 1 of 4, ")
    assert all(line.endswith(("left", "yet")) for line in lines)
    assert "\r" not in log.getvalue()
    assert "\x1b" not in log.getvalue()


def test_short_work_prints_nothing(monkeypatch):
    log = logging(monkeypatch)
    monkeypatch.setattr(progress, "_INTERVAL", 3600)
    with progress.bar("training", 4) as advance:
        advance(4)
    assert log.getvalue() == ""


def test_silent_work_prints_nothing(monkeypatch):
    log = logging(monkeypatch)
    monkeypatch.setattr(progress, "_INTERVAL", 0.001)
    with progress.silent(), progress.bar("training", 4):
        assert not log.written.wait(0.05)
    assert log.getvalue() == ""


def test_lines_end_with_the_work_even_if_it_fails(monkeypatch):
    logging(monkeypatch)
    before = threading.active_count()
    with pytest.raises(ValueError, match="broken"), progress.bar("training", 4):
        raise ValueError("broken")
    assert threading.active_count() == before


def test_a_bar_labels_the_elapsed_time_and_the_time_left(monkeypatch):
    class Watched(Terminal):
        shown = threading.Event()

        def write(self, text):
            super().write(text)
            if "left" in text:
                self.shown.set()
            return len(text)

    monkeypatch.setattr(sys, "stderr", Watched())
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.bar("training", 4) as advance:
        advance(2)
        assert Watched.shown.wait(60)
    shown = sys.stderr.getvalue()
    assert shown.index("elapsed,") < shown.index("left")


def test_work_that_was_underestimated_never_passes_its_total():
    assert progress.format_line("matching", 1.2e10, 1e10, 30) == "matching: 100%, 30 s elapsed, 0 s left"
