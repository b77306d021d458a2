"""Fixtures that many tests share: a small dataset, target, datamodel and run, and a way to run commands."""

import atexit
import copy
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import hypothesis
import pytest
import refusals
import torch
from command_results import CommandResult, without_progress
from synset_alone import synset_alone

import ddm
import ddm.runs.config
import ddm.runs.run
from ddm.cli import main as cli
from ddm.compute import precision

# Hugging Face reads these when it is imported: it must use neither the network nor the user's cache.
os.environ.update(HF_HOME=tempfile.mkdtemp(prefix="ddm-hf-"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

torch.set_num_threads(1)

# A test must not fail because the machine is busy.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def digits() -> ddm.Data:
    return ddm.datasets.load("digits", limit=300)


@pytest.fixture(scope="session")
def target(digits) -> ddm.Target:
    network = ddm.networks.ConvNet(digits.train.shape, len(digits.classes), width=8, depth=2)
    return ddm.train(network, digits.train, ddm.Recipe(epochs=6, lr=0.1, batch_size=32, momentum=0.9))


@pytest.fixture(scope="session")
def datamodel(target, digits) -> ddm.DistilledDatamodel:
    return ddm.DistilledDatamodel.fit(target, digits.train, clusters=3, curvature=1024, bank=40)


@pytest.fixture(scope="session")
def refined(datamodel) -> ddm.DistilledDatamodel:
    """The same datamodel with ten retrainings, so that its effects have intervals."""
    found = copy.copy(datamodel)
    found.refine(10, workers=1, engine="serial")
    return found


@pytest.fixture(scope="session")
def synset_datamodel(datamodel) -> ddm.DistilledDatamodel:
    """The same datamodel without its kept responses: it answers from its synset."""
    return synset_alone(datamodel)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """The directory of a small finished run. Tests that change it copy it first."""
    out = tmp_path_factory.mktemp("finished") / "run"
    config = ddm.runs.config.Config(
        limit=60,
        options={"width": 4, "depth": 1, "seed": 0},
        recipe=ddm.Recipe(epochs=2, batch_size=16),
        partition="class",
        settings=ddm.Settings(curvature=64, bank=8),
    )
    ddm.runs.run.fit(config, out, "serial")
    return out


@pytest.fixture(scope="session")
def refused() -> Callable[..., AbstractContextManager[None]]:
    """``with refused("word", …)``: the block raises ``InputError`` with one line that has all these words."""

    return refusals.refused


@pytest.fixture(scope="session")
def bfloat16() -> None:
    """Skips the test on processors that crash in bfloat16."""
    if not precision.bfloat16_works():
        pytest.skip("bfloat16 crashes this processor with an illegal instruction")


@pytest.fixture
def no_bfloat16(monkeypatch):
    """Simulates a processor that crashes in bfloat16."""
    dies = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setattr(precision, "_CHILD", dies)
    precision.bfloat16_works.cache_clear()
    yield
    precision.bfloat16_works.cache_clear()


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """``command("fit", …)`` runs a command in this process, in an empty folder."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command replaces it
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ddm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        printed = capsys.readouterr()
        return CommandResult(exit_.value.code, printed.out, without_progress(printed.err))

    return run
