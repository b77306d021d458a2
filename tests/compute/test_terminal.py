"""Names from files cannot send control codes to a terminal."""

import json
import os
import pty
import sys
import warnings

import pytest
from rich.table import Table

from ddm.cli.options import print_json
from ddm.compute import progress
from ddm.compute.terminal import console, printable

HOSTILE = "a\x1b]0;title\x07b\x9b31mc\rd\x7fe\u202ef"
SHOWN = r"a\x1b]0;title\x07b\x9b31mc\rd\x7fe\u202ef"


def test_control_characters_become_escapes_and_other_text_stays():
    assert printable(HOSTILE) == SHOWN
    assert printable("né\t→ 数\n[bold]") == "né\t→ 数\n[bold]"
    assert printable("\udcff") == r"\udcff"


def test_sentences_and_tables_do_not_steer_a_terminal(capsys):
    table = Table(title=f"{HOSTILE} title", caption=f"{HOSTILE} caption")
    table.add_column(f"{HOSTILE} heading")
    table.add_row(f"{HOSTILE} cell")
    console().print(table)
    console().print(f"{HOSTILE} sentence")
    said = capsys.readouterr().out
    for word in ("title", "caption", "heading", "cell", "sentence"):
        assert f"{SHOWN} {word}" in said
    assert printable(said) == said


def test_notes_and_errors_do_not_steer_a_terminal(command, capsys):
    progress.note(HOSTILE)
    assert capsys.readouterr().err == f"{SHOWN}\n"
    for arguments in (("verify", HOSTILE), ("fit", f"npz:{HOSTILE}"), ("fit", "--partition", HOSTILE)):
        answer = command(*arguments)
        assert answer.code == 2
        assert r"a\x1b]0;title\x07b\x9b31mc" in answer.err
        assert printable(answer.err) == answer.err
    warnings.warn(HOSTILE, stacklevel=1)
    assert capsys.readouterr().err == f"note: {SHOWN}\n"


def read_until(terminal, word):
    """Everything that a terminal shows until a word appears."""
    shown = b""
    while word.encode() not in shown:
        shown += os.read(terminal, 4096)
    return shown.decode(errors="replace")


def test_labels_of_bars_do_not_steer_a_terminal(monkeypatch):
    ours, theirs = pty.openpty()
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("COLUMNS", "200")
        with progress.bar(f"[red]{HOSTILE}", 1):
            said = read_until(ours, "left")
    os.close(ours)
    assert "[red]" in said
    assert SHOWN in said
    assert "\x1b]0;" not in said


@pytest.mark.parametrize("value", [HOSTILE, "né", "\udcff"])
def test_json_is_exact_and_does_not_steer_a_terminal(capsys, value):
    print_json({value: [value]})
    said = capsys.readouterr().out
    assert json.loads(said) == {value: [value]}
    assert printable(said) == said
