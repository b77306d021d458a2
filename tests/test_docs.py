"""The documentation is true: its code runs as it is written, its commands exist, its notebooks and site can be made.

A page's ```python blocks are run in their order, in one namespace and an empty folder. ``PREAMBLES`` gives the names
that a page leaves to the reader; a page that goes on from another finds the other's files. A block is left out after
``<!-- test: skip because … -->``. One after ``<!-- needs: PACKAGE -->`` has a test of its own, which is skipped where
the package is not installed. Of ```console blocks, each line ``$ ddm …`` must be one that the command accepts.
"""

import contextlib
import inspect
import io
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import nbclient
import nbformat
import pytest
import typer.main
from matplotlib import image

import ddm
from ddm.cli import main as cli
from ddm.cli.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    DOCS / name
    for name in (
        "index.md",
        "scaling.md",
        "guides/own-model-and-loop.md",
        "guides/trainer.md",
        "guides/lightning.md",
        "guides/own-groups.md",
        "guides/tables.md",
        "guides/texts.md",
        "guides/finding-bad-data.md",
        "guides/unlearning.md",
        "guides/reading-an-audit.md",
        "guides/how-much-retraining.md",
        "guides/where-answers-go.md",
    )
]
STARTED = DOCS / "get-started.md"
README = ROOT / "README.md"
QUICK = ("fit digits --option", "trace runs/command", "attribute runs/command", "unlearn runs/command")
"""Beginnings of the commands that are run, too."""

PREAMBLES = {
    README: """
import torch
import ddm
digits = ddm.datasets.load("digits", limit=200)
train_set = digits.train
annotator_of_each_sample = [f"annotator {i % 3}" for i in range(len(train_set))]
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(model, optimizer):
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(train_set.batch()[0]), train_set.labels).backward()
        optimizer.step()
"""
}


def blocks(page, *kinds, tool=None):
    """The fenced blocks of some kinds, with the number of the line each begins at; skipped ones are left out.

    tool: also those that need this package
    """
    found = re.finditer(
        r"(?:<!-- test: skip because (?P<why>[^>]+) -->\n)?(?:<!-- needs: (?P<tool>\w+) -->\n)?"
        r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
        page.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for block in found:
        if block["kind"] in kinds and not block["why"] and block["tool"] in (None, tool):
            yield block.string.count("\n", 0, block.start("text")), block["text"]


def run(page, folder, tool=None):
    """Run a page's Python in a folder and return what it prints; errors point to lines of the page."""
    names = {"__name__": "page"}
    parts = [("preamble", PREAMBLES.get(page, ""))]
    parts += [(str(page), "\n" * line + text) for line, text in blocks(page, "python", tool=tool)]
    assert len(parts) > 1
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.chdir(folder)
        for name, text in parts:
            exec(compile(text, name, "exec"), names)
    return said.getvalue()


def say(words, folder):
    """Run a command in a folder and return what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["ddm", *words])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # the command replaces it
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return said.getvalue()


def ddm_lines(page):
    """Each ``ddm …`` command of a page's shell blocks, as words."""
    for _, text in blocks(page, "console", ""):
        for line in text.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if "ddm " in line else []
            if words[:1] == ["ddm"]:
                yield words[1:]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder after running Get started, and what its code printed."""
    folder = tmp_path_factory.mktemp("started")
    return folder, run(STARTED, folder)


# --- Python ---


@pytest.mark.slow
def test_getting_started_gives_about_what_the_page_says(started):
    folder, said = started
    written = re.search(r"([0-9.]+) % of the 359 test images right", STARTED.read_text(encoding="utf-8"))
    found = re.search(r"([0-9.]+)% right on 359 test images", said)
    assert float(found[1]) == pytest.approx(float(written[1]), abs=2)
    assert "\n9 9/1 -" in said  # class, group and sign; the value depends on the machine
    for picture in ("effects.png", "trace.png", "shares.png"):
        assert image.imread(folder / picture).std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_it_is_written(page, started, tmp_path):
    shutil.copytree(started[0], tmp_path, dirs_exist_ok=True)
    run(page, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "written"), [("tensorboard", "logs"), ("mlflow", "mlflow.db"), ("wandb", "wandb")])
def test_answers_reach_the_tool_of_a_guide(tool, written, tmp_path, monkeypatch):
    pytest.importorskip(tool)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(DOCS / "guides" / "where-answers-go.md", tmp_path, tool)
    assert (tmp_path / written).exists()


@pytest.mark.slow
def test_the_code_of_the_readme_runs_as_it_is_written(tmp_path):
    run(README, tmp_path)


def test_every_page_with_code_is_run():
    written = {page for page in DOCS.rglob("*.md") if list(blocks(page, "python"))}
    assert written - {STARTED} <= set(PAGES)
    text = "".join(page.read_text(encoding="utf-8") for page in (README, STARTED, *PAGES))
    assert text.count("<!-- test: skip") <= 1


# --- commands ---


def test_commands_that_are_shown_exist_with_their_options():
    commands = typer.main.get_command(app).commands
    shown = [(page, words) for page in (README, *DOCS.rglob("*.md")) for words in ddm_lines(page)]
    assert len(shown) > 10
    for page, (name, *words) in shown:
        assert name in commands, f"{page}: there is no command {name}"
        commands[name].make_context(name, list(words))  # raises where an option does not exist


@pytest.mark.slow
def test_commands_on_digits_run(started):
    run_lines = [words for words in ddm_lines(STARTED) if " ".join(words).startswith(QUICK)]
    assert len(run_lines) == 4
    for words in run_lines:
        said = say(words, started[0])
    assert "9/1" in said
    assert (started[0] / "without.safetensors").stat().st_size > 0


# --- notebooks and site ---


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_small(path, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert path.stat().st_size < 500_000
    notebook = nbformat.read(path, as_version=4)
    # A cell has no time limit of its own, because a busy machine takes long; the suite has one for the whole test.
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=None, startup_timeout=600, resources=resources).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("text/html" in output.get("data", {}) for output in shown)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False, timeout=600)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nothing_of_other_machines(site):
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "get-started.html", "command-line.html", "method.html"} <= {page.name for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//", text)
        assert not re.findall(
            r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect|preload)[^>]+href=[\"']?(?:https?:)?//", text
        )


@pytest.mark.slow
def test_the_reference_and_the_commands_are_filled_in(site):
    commands = (site / "command-line.html").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():
        assert f"ddm {name}" in commands
        for option in command.params:
            if option.name != "help":
                assert (option.opts[0] if option.opts[0].startswith("-") else option.name.upper()) in commands
    answers = (site / "reference/answers.html").read_text(encoding="utf-8")
    assert inspect.getdoc(ddm.Attribution).splitlines()[0] in answers
    assert "<li><code>baseline</code>" in answers
    notebook = (site / "notebooks/first-answer.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in notebook
