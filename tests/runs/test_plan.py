"""Plans: the estimated time, memory and disk space of a fit, compared with what the fit really needs."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import joblib
import pytest
import torch
from refusals import assert_refused

from ddm.compute import stopwatch
from ddm.compute.backends import Backend
from ddm.distil import Settings
from ddm.distil import estimate as estimates
from ddm.runs.config import Config
from ddm.runs.plan import estimate
from ddm.runs.run import fit
from ddm.training.recipe import Recipe

SMALL = Config(
    data="digits",
    limit=400,
    options={"width": 8, "depth": 2},
    recipe=Recipe(epochs=6),
    clusters=3,
    settings=Settings(curvature=512, bank=64),
)
REVERSE = Settings(matching="reverse", steps=3)


@pytest.fixture(autouse=True)
def even_clock(monkeypatch):
    """Count every trial as one second, so that estimates depend on the amount of work, not on the machine's load."""

    def one_second(work):
        work()
        return 1.0

    monkeypatch.setattr(stopwatch, "time_once", one_second)


@pytest.mark.parametrize("settings", [SMALL.settings, REVERSE], ids=["response", "reverse"])
def test_the_planned_disk_space_is_right_within_a_factor_of_two(settings, tmp_path):
    config = Config(**{**vars(SMALL), "settings": settings})
    wanted = estimate(config).disk
    fit(config, tmp_path / "run")
    found = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert found / 2 <= wanted <= 2 * found


MEASURED = """
import json, sys
from pathlib import Path
from ddm.runs import run
from ddm.runs.config import Config
from ddm.runs.plan import estimate
from ddm.compute.memory import peak_bytes

config, out = Config.from_dict(json.loads(sys.argv[1])), sys.argv[2:]
if out:
    run.fit(config, Path(out[0]), "serial")
    print(peak_bytes())
else:
    print(estimate(config, "serial").memory)
"""


def measured(config, *out):
    """Peak memory of a fit in one process, in bytes: measured if ``out`` is given, else as planned."""
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, json.dumps(config.to_dict()), *map(str, out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=600)
    return int(answer.stdout)


@pytest.mark.slow
def test_the_planned_memory_is_right_within_a_factor_of_two(tmp_path):
    config = Config(data="digits", options={"width": 16, "depth": 2}, recipe=Recipe(epochs=2), clusters=8)
    wanted, found = measured(config), measured(config, tmp_path / "run")
    assert found / 2 <= wanted <= 2 * found


def test_a_plan_times_its_trials_on_one_thread(monkeypatch):
    threads = []
    gradient = estimates.loss_gradient
    monkeypatch.setattr(
        estimates, "loss_gradient", lambda *given: threads.append(torch.get_num_threads()) or gradient(*given)
    )
    torch.set_num_threads(2)
    try:
        estimate(SMALL)
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}


@pytest.mark.parametrize(
    ("settings", "workers"), [(SMALL.settings, 8), (REVERSE, 4)], ids=["response", "reverse: as many as blocks"]
)
def test_the_planned_memory_includes_every_worker(settings, workers, monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    config = replace(SMALL, settings=settings)
    here, there = estimate(config, "serial"), estimate(config, "processes")
    assert (here.workers, there.workers) == (0, workers)
    assert there.memory > here.memory + workers * 50e6  # each worker loads Python and torch
    assert estimate(config, Backend("serial")).workers == 0
    assert estimate(config, "dask://127.0.0.1:1").workers == 0


def test_the_planned_memory_of_a_bank_that_may_grow_exceeds_that_of_a_fixed_bank():
    grows = estimate(replace(SMALL, settings=Settings(curvature=512)), "serial")
    stays = estimate(replace(SMALL, settings=Settings(curvature=512, bank=102)), "serial")
    assert grows.memory > stays.memory + 30e6


def test_memory_that_this_process_used_earlier_does_not_count():
    before = estimate(SMALL, "serial").memory
    torch.ones(2**28)  # 1 GiB, freed at once
    assert estimate(SMALL, "serial").memory < before + 2**29


def test_a_plan_names_the_number_of_workers_and_refuses_an_unknown_engine(command, monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    small = ("fit", "digits", "--limit", "100", "--epochs", "2", "--plan", "--engine")
    assert "including 3 workers" in command(*small, "processes").out
    assert "workers" not in command(*small, "serial").out
    assert "cores as this machine" in command(*small, "dask://127.0.0.1:1").err
    assert_refused(command(*small, "nonsense"), "no engine 'nonsense'")


def test_a_larger_fit_needs_more_time_memory_and_disk_space():
    one = estimate(SMALL)
    many = Config(**{**vars(SMALL), "clusters": 12, "recipe": Recipe(epochs=60), "options": {"width": 32, "depth": 2}})
    other = estimate(many)
    assert other.seconds["training"] > 4 * one.seconds["training"]  # every trial counts as one second
    assert other.memory > one.memory
    assert other.disk > 10 * one.disk


@pytest.mark.parametrize("matching", ["reverse", "forward"])
def test_more_matching_steps_need_more_time(matching):
    few, many = (Settings(matching=matching, steps=steps) for steps in (3, 300))
    seconds = [estimate(replace(SMALL, settings=settings)).seconds["matching"] for settings in (few, many)]
    assert seconds[1] > seconds[0]  # every trial counts as one second


def test_a_plan_knows_the_size_of_the_kept_responses_and_what_the_synset_takes(tmp_path):
    whole = estimate(SMALL)
    fit(SMALL, tmp_path / "run", "serial")
    found = (tmp_path / "run" / "responses.safetensors").stat().st_size
    assert 0.9 * found < whole.kept <= found
    assert 0 < whole.synset < whole.seconds["matching"]
    bare = estimate(replace(SMALL, settings=replace(SMALL.settings, synset=False)))
    assert bare.synset == 0
    assert bare.seconds["matching"] == pytest.approx(whole.seconds["matching"] - whole.synset)  # every trial: 1 second
    assert bare.memory < whole.memory
    assert bare.disk < whole.disk
    assert estimate(replace(SMALL, settings=replace(SMALL.settings, keep=0))).kept == 0


def test_a_plan_is_printed_and_nothing_is_written(command, tmp_path):
    answer = command("fit", "digits", "--limit", "100", "--epochs", "2", "--plan")
    assert answer.code == 0
    assert "This fit would take about" in answer.out
    assert "of memory" in answer.out
    assert "of responses. The synset takes" in answer.out
    assert not list(tmp_path.iterdir())
    found = json.loads(command("fit", "digits", "--limit", "100", "--epochs", "2", "--plan", "--json").out)
    assert set(found) == {"seconds", "memory", "workers", "disk", "kept", "synset"}
    assert found["seconds"]["all"] == pytest.approx(sum(v for k, v in found["seconds"].items() if k != "all"))
