"""Independent tasks give the same results on every backend."""

import contextlib
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from failing_task import failing_task

import ddm
from ddm.compute import engine, progress
from ddm.compute.backends import Backend

WHERE = pytest.mark.parametrize("workers", [1, 2], ids=["here", "processes"])


@pytest.fixture
def two_threads():
    """A caller with more than one thread, as on any machine with more than one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(seed):
    data = ddm.datasets.load("digits", limit=120)
    network = ddm.networks.ConvNet(width=4, depth=1)
    return seed, ddm.train(network, data.train, ddm.Recipe(epochs=2, seed=seed)).theta


def test_a_training_gives_the_same_bits_in_one_process_and_in_two(two_threads):
    here, there = (dict(engine.run_tasks(trained, range(4), workers=workers)) for workers in (1, 2))
    assert here.keys() == there.keys() == set(range(4))
    assert all(torch.equal(here[seed], there[seed]) for seed in here)
    assert not torch.equal(here[0], here[1])


@WHERE
def test_a_task_has_one_thread_and_no_progress_bar_and_the_caller_keeps_its_threads(two_threads, workers):
    def inside(_):
        return torch.get_num_threads(), progress._silent

    for found in engine.run_tasks(inside, range(3), workers=workers):
        assert found == (1, 1)
        assert torch.get_num_threads() == 2  # between tasks as well
    assert torch.get_num_threads() == 2
    assert progress._silent == 0


def test_only_the_outer_bar_is_shown(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def work(_):
        with progress.bar("inner", 1):
            time.sleep(0.05)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    list(engine.run_tasks(work, range(3), workers=1, description="outer"))
    assert "outer" in sys.stderr.getvalue()
    assert "inner" not in sys.stderr.getvalue()


def test_a_task_starts_only_when_its_result_is_requested():
    done = []
    results = engine.run_tasks(done.append, range(3), workers=1)
    assert done == []
    next(results)
    assert done == [0]
    results.close()
    assert done == [0]


@pytest.mark.parametrize(("count", "used"), [(2, [0, 1, 0, 1]), (1, [])])
def test_tasks_use_several_gpus_in_turn(count, used, monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "device", lambda number: contextlib.nullcontext(taken.append(number)))
    assert sorted(engine.run_tasks(abs, [-1, -2, -3, -4], engine="serial")) == [1, 2, 3, 4]
    assert taken == used


@pytest.mark.parametrize("workers", [None, 1, 5])
def test_without_tasks_there_are_no_results(workers):
    assert list(engine.run_tasks(trained, [], workers=workers)) == []


@WHERE
def test_a_task_that_fails_is_retried(tmp_path, workers):
    def work(task):
        tried = tmp_path / str(task)
        if task == 1 and not tried.exists():
            tried.touch()
            raise OSError("for a moment")
        return task

    assert sorted(engine.run_tasks(work, range(3), workers=workers)) == [0, 1, 2]
    assert (tmp_path / "1").exists()


@WHERE
def test_a_task_that_fails_three_times_is_named_and_the_other_results_are_returned(tmp_path, refused, workers):
    work, results = failing_task("b", tmp_path / "attempts"), []
    with refused("retraining: task 2 of 3 (b) failed 3 times", "RuntimeError: cannot be done", "the other 2 are done"):
        for result in engine.run_tasks(work, "abc", workers=workers, description="retraining"):
            results.append(result)
    assert sorted(results) == ["a", "c"]
    assert (tmp_path / "attempts").read_text() == "xxx"


def test_a_process_that_dies_is_replaced_and_the_task_that_killed_it_is_identified(tmp_path, refused):
    home = os.getpid()

    def work(task):
        if task == 2 and os.getpid() != home:
            with (tmp_path / "attempts").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    results = []
    with refused("task 3 of 5 (2) failed 3 times", "the other 4 are done"):
        for result in engine.run_tasks(work, range(5), workers=2):
            results.append(result)
    assert sorted(results) == [0, 1, 3, 4]
    assert (tmp_path / "attempts").read_text() == "xxx"


def test_each_process_unpickles_the_function_once():
    class Work:
        def __init__(self):
            self.ballast, self.seen = torch.zeros(10**5), 0

        def __call__(self, task):
            self.seen += 1
            return os.getpid(), self.seen

    found = list(engine.run_tasks(Work(), range(6), workers=2))
    assert os.getpid() not in {process for process, _ in found}
    for process in {process for process, _ in found}:
        seen = sorted(count for other, count in found if other == process)
        assert seen == list(range(1, 1 + len(seen)))  # one object has seen them all


def test_a_function_that_cannot_be_pickled_is_refused(refused):
    lock = threading.Lock()
    with refused("cannot be sent", "workers=1"):
        list(engine.run_tasks(lambda task: (lock, task), range(3), workers=2))


@WHERE  # last: a failure ends the processes
def test_an_input_error_of_a_task_reaches_the_caller_and_finished_tasks_stay_done(tmp_path, two_threads, workers):
    tasks = [str(tmp_path / name) for name in "abcd"]

    def work(task):
        if task == tasks[-1]:
            while not all(Path(other).exists() for other in tasks[:-1]):
                time.sleep(0.01)
            raise ddm.InputError("the last one cannot be done.")
        Path(task).write_text("done")
        return task

    with pytest.raises(ddm.InputError, match="the last one cannot be done"):
        list(engine.run_tasks(work, tasks, workers=workers))
    assert sorted(str(path) for path in tmp_path.iterdir()) == tasks[:-1]
    assert torch.get_num_threads() == 2
    assert progress._silent == 0


def test_an_engine_that_cannot_start_any_task_is_refused(monkeypatch, refused):
    tried = []

    def run(place, calls, shared, count):
        tried.append(place)
        raise OSError("No space left on device")

    monkeypatch.setattr(Backend, "run", run)
    with refused("cannot start any task", "OSError: No space left on device"):
        list(engine.run_tasks(str, range(4), workers=2))
    assert len(tried) == 3
