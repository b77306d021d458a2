"""Fixtures that tests of stored problems share."""

import pytest

from ddm.bench.problems import PROBLEMS
from ddm.truth.retraining import Retraining


@pytest.fixture
def registered(request, monkeypatch):
    """The tiny problem of a test file in the registry, instead of all others."""
    for name in reversed(list(PROBLEMS)):  # restored in the order of the registry
        monkeypatch.delitem(PROBLEMS, name)
    monkeypatch.setitem(PROBLEMS, "digits-tiny", ("tiny", request.module.tiny_setup()))


@pytest.fixture
def no_retraining(monkeypatch):
    """Fails if anything is retrained."""

    def refuse(*args):
        raise AssertionError("it retrains")

    monkeypatch.setattr(Retraining, "run", refuse)
