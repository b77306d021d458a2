"""Plans of a fit in Python, and fits within a budget of time."""

from dataclasses import replace

import pytest
from refusals import refused

import ddm
from ddm.compute import stopwatch
from ddm.distil import Settings
from ddm.distil.plan import seconds_of, settings_within

QUICK = {"clusters": 2, "curvature": 256, "checkpoints": 4}


@pytest.fixture
def even_clock(monkeypatch):
    """Count every trial as one second, so that plans depend on the amount of work, not on the machine's load."""

    def one_second(work):
        work()
        return 1.0

    monkeypatch.setattr(stopwatch, "time_once", one_second)


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ("10 min", 600),
        ("2 h", 7200),
        ("3m", 180),
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        ("1.5 hours", 5400),
        ("1d", 86400),
    ],
)
def test_budgets_are_read_in_seconds_minutes_and_hours(budget, seconds):
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["soon", "-3 min", "0", 0, "10 parsecs", "", "1.2.3 s", float("nan"), True])
def test_other_budgets_are_refused(budget):
    with refused("10 min"):
        seconds_of(budget)


def test_a_plan_names_the_cost_of_the_fit_with_the_same_arguments(target, digits, even_clock):
    some, more = (ddm.plan(target, digits.train, **(QUICK | {"clusters": count})) for count in (2, 6))
    assert set(some.seconds) == {"partition", "matching"}
    assert more.kept > some.kept
    assert more.total > some.total
    head = ddm.plan(target, digits.train, parameters="head", **QUICK)
    assert head.kept < some.kept
    own = ddm.plan(target, digits.train, partition={"a": range(60), "b": range(40, 90)}, curvature=256)
    assert own.seconds["partition"] == 0
    assert repr(own).startswith("Estimate: about ")


def test_a_generous_budget_changes_nothing_and_a_small_one_chooses_cheaper_settings(target, digits, even_clock, capsys):
    settings = Settings(checkpoints=7, curvature=1024, synset=True)
    arguments = (target, digits.train, 2, "class", None)
    full = ddm.plan(*arguments[:3], partition="class", settings=settings)
    assert settings_within(full.total + 1, *arguments, settings) == settings
    assert capsys.readouterr().err == ""
    budget = full.total - full.synset / 2
    found = settings_within(budget, *arguments, settings)
    assert found == replace(settings, synset=False)
    assert ddm.plan(*arguments[:3], partition="class", settings=found).total <= budget
    assert "ddm uses no synset" in capsys.readouterr().err


def test_a_fit_keeps_to_its_budget_or_is_refused(target, digits, even_clock):
    dm = ddm.DistilledDatamodel.fit(target, digits.train, partition="class", budget="1 h", **QUICK | {"clusters": 1})
    assert dm.settings == Settings(curvature=256, checkpoints=4)
    with refused("even the cheapest fit", "0.001 s", "parameters='head'"):
        ddm.DistilledDatamodel.fit(target, digits.train, partition="class", budget="0.001 s")
