"""Commands that are killed at any moment leave what can be read, and go on to the result of one that was not."""

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest
from fuzzing import some
from killing import Command, fresh, group, results

import ddm
from ddm.compute.files import read_json
from ddm.compute.tensors import read_tensors
from ddm.runs.verify import verify

SEED = 7

FIT = (
    "fit digits --limit 60 --option width=4 --option depth=1 --epochs 6 --batch-size 16 --clusters 2 "
    "--setting curvature=64 --setting bank=8 --setting memory=0.0002 --out run"
)
AUDIT = "audit run --retrain 4 --unions 4 --engine serial"
LONG = "audit run --retrain 12 --unions 60"
"""Seconds of retrainings, so that there are some left when the first is seen."""
BENCH = "bench hierarchy --scale tiny --out bench"
KILLS = {"fit": some(24, 4), "audit": some(20, 3), "bench": some(6, 1)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of an undisturbed fit."""
    return undisturbed(FIT, tmp_path_factory.mktemp("fitted"))[0]


def undisturbed(command, folder):
    """Run a command once; return the content of its folder and the seconds that it took."""
    running = Command(command, folder)
    assert running.end() == 0, (folder / "log").read_text()
    return folder, time.monotonic() - running.started


@pytest.mark.parametrize("name", KILLS)
def test_a_command_killed_at_random_moments_goes_on_to_the_same_result(name, fitted, tmp_path, attempt):
    """Each time it is killed up to three times, half of them after some time and half after some files."""
    command, template = {"fit": (FIT, None), "audit": (AUDIT, fitted), "bench": (BENCH, None)}[name]
    random_moment = random.Random(f"{SEED} {name}")
    print(f"seed {SEED}")
    fresh(tmp_path / "whole", template)
    whole, seconds = undisturbed(command, tmp_path / "whole")
    expected = results(whole)
    written = count(whole) - (count(template) if template is not None else 0)
    kills, folder = 0, tmp_path / "killed"
    while kills < KILLS[name]:
        fresh(folder, template)
        for _ in range(min(random_moment.randint(1, 3), KILLS[name] - kills)):
            if kill_once(Command(command, folder), folder, random_moment, seconds, written):
                kills += 1
                with attempt("kills"):
                    every_file_is_whole(folder)
        with attempt("results after kills"):
            assert Command(command, folder).end() == 0, (folder / "log").read_text()
            assert results(folder) == expected


def kill_once(running, folder, random_moment, seconds, written):
    """Kill a command once some time has passed or some further files are there, unless it has ended by then."""
    wait, files = random_moment.uniform(0, seconds), count(folder) + random_moment.randint(1, written)
    by_time = random_moment.random() < 0.5
    while running.process.is_alive():
        if time.monotonic() - running.started >= wait if by_time else count(folder) >= files:
            break
        time.sleep(0.01)
    return running.kill()


def count(folder):
    """Files of tensors; unlike a glob, a walk bears folders that vanish meanwhile."""
    return sum(name.endswith(".safetensors") for _, _, names in os.walk(folder) for name in names)


def every_file_is_whole(folder):
    """Whatever was being written, all that has a name can be read, and a run is loaded or refused in a sentence; it is
    never called damaged."""
    for path in folder.rglob("*"):
        if not any(part.startswith(".ddm-") for part in path.parts):
            if path.suffix == ".json":
                read_json(path)
            elif path.suffix == ".safetensors":
                read_tensors(path)
    if (folder / "run").exists():
        with contextlib.suppress(ddm.InputError):
            ddm.load(folder / "run")
    if (folder / "run" / "manifest.json").exists():
        assert not verify(folder / "run").bad


@pytest.mark.parametrize(
    "moment", ["synset.safetensors", "responses.safetensors", "summary.json", "parts/identity.json", "config.json"]
)
def test_a_fit_killed_at_a_chosen_file_goes_on_to_the_same_result(moment, fitted, tmp_path, attempt):
    with attempt("kills"):
        running = Command(FIT, tmp_path)
        while running.process.is_alive() and not (tmp_path / "run" / moment).exists():
            time.sleep(0.0005)
        running.kill()
        every_file_is_whole(tmp_path)
        assert Command(FIT, tmp_path).end() == 0
        assert results(tmp_path) == results(fitted)


def in_processes(folder, started):
    """An audit in processes, as soon as it has retrained ``started`` models there."""
    running = Command(f"{LONG} --engine processes --json", folder)
    while len(list((folder / "run" / "exact").glob("*.safetensors"))) < started:
        assert running.process.is_alive(), (folder / "log").read_text()
        time.sleep(0.01)
    return running


def workers_of(running):
    return [
        number
        for number in group(running.process.pid)
        if b"LokyProcess" in Path(f"/proc/{number}/cmdline").read_bytes()
    ]


@pytest.fixture(scope="module")
def audited(fitted, tmp_path_factory):
    """The folder of an undisturbed audit in one process."""
    folder = tmp_path_factory.mktemp("audited")
    fresh(folder, fitted)
    return undisturbed(f"{LONG} --engine serial", folder)[0]


def test_an_audit_goes_on_when_the_kernel_kills_a_worker(fitted, audited, tmp_path, attempt):
    fresh(tmp_path / "killed", fitted)
    with attempt("workers killed"):
        running = in_processes(tmp_path / "killed", 1)
        os.kill(workers_of(running)[0], signal.SIGKILL)
        assert running.end() == 0, (tmp_path / "killed" / "log").read_text()
        assert results(tmp_path / "killed") == results(audited)


def test_workers_end_with_a_command_that_is_killed_alone(fitted, audited, tmp_path, attempt):
    fresh(tmp_path / "killed", fitted)
    with attempt("kills"):
        running = in_processes(tmp_path / "killed", 1)
        workers = workers_of(running)
        assert workers
        running.process.kill()
        running.end()
        gone(running)
        assert Command(f"{LONG} --engine serial", tmp_path / "killed").end() == 0
        assert results(tmp_path / "killed") == results(audited)


def test_ctrl_c_leaves_no_worker_and_one_sentence_and_the_audit_goes_on(fitted, audited, tmp_path, attempt):
    fresh(tmp_path / "killed", fitted)
    with attempt("interrupts"):
        running = in_processes(tmp_path / "killed", 1)
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130
        gone(running)
        said = (tmp_path / "killed" / "log").read_text().splitlines()
        assert said[-1] == "ddm: interrupted; run the same command again to resume."
        assert "Traceback" not in "".join(said)
        assert Command(f"{LONG} --engine serial", tmp_path / "killed").end() == 0
        assert results(tmp_path / "killed") == results(audited)


def gone(running):
    """Wait until no process of a command is left."""
    for _ in itertools.takewhile(lambda _: group(running.process.pid), range(600)):
        time.sleep(0.1)
    assert not group(running.process.pid)
