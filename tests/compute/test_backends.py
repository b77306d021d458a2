"""Results on a Dask or Ray cluster equal local results byte for byte, even if workers die."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from failing_task import failing_task
from refusals import assert_refused
from torch.nn import functional as F

import ddm
from ddm.compute import engine
from ddm.compute.backends import Backend
from ddm.truth.retraining import Retraining

ENV = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(ddm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
}
FILES = ("synset.safetensors", "synset-class.safetensors")


@contextmanager
def started(*arguments):
    """A process of Dask's own that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler on this machine and three workers, of which one may be killed."""
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    with ExitStack() as stack:
        loopback = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file))
        scheduler = stack.enter_context(started("scheduler", "--port", "0", *loopback))
        while not (file.exists() and file.read_text().endswith("}")):
            assert scheduler.poll() is None
            time.sleep(0.05)
        for _ in range(3):
            stack.enter_context(started("worker", "--nthreads", "1", "--no-nanny", *loopback))
        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(3)
        yield address.replace("tcp://", "dask://")


@pytest.fixture(scope="module")
def ray():
    """A Ray of this process."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's folder
        environment.setenv("PYTHONPATH", ENV["PYTHONPATH"])
        import ray

        # Of the loopback's addresses Ray takes 127.0.0.1 for another, one that can be reached from outside.
        ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.2", log_to_driver=False)
        yield "ray"
        ray.shutdown()


@pytest.fixture(params=["dask", "ray"])
def cluster(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def small():
    """A few samples and a target trained on them, its trajectory in memory."""
    samples = ddm.datasets.load("digits", limit=80).train
    network = ddm.networks.ConvNet(width=4, depth=1)
    return ddm.train(network, samples, ddm.Recipe(epochs=2, batch_size=16)), samples


def files(target, samples, folder, where):
    """The bytes of the synset files that an engine wrote."""
    fitted = ddm.DistilledDatamodel.fit(target, samples, 2, curvature=64, bank=12, engine=where)
    fitted.save(folder)
    return [(folder / name).read_bytes() for name in FILES]


@pytest.mark.slow
def test_fit_writes_the_same_bytes_on_a_cluster_and_in_this_process(cluster, command, tmp_path):
    options = "--limit 80 --option width=4 --option depth=1 --epochs 2 --batch-size 16 --clusters 2"
    settings = "--setting curvature=64 --setting bank=12"
    for where in ("serial", cluster):
        answer = command("fit", *f"digits {options} {settings} --json --engine {where} --out {where[:4]}".split())
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["groups"] == 20
    for name in FILES:
        assert (tmp_path / cluster[:4] / name).read_bytes() == (tmp_path / "seri" / name).read_bytes()


@pytest.mark.slow
def test_tasks_run_on_the_cluster_on_one_thread_and_each_worker_unpickles_the_function_once(cluster):
    class Work:
        def __init__(self):
            self.opened = []

        def __getstate__(self):
            return {}

        def __setstate__(self, state):
            self.opened = [object()]

        def __call__(self, task):
            import torch

            self.opened.append(task)
            return os.getpid(), torch.get_num_threads(), len(self.opened)

    found = list(engine.run_tasks(Work(), range(8), engine=cluster))
    assert len(found) == 8
    assert os.getpid() not in {process for process, _, _ in found}
    assert {threads for _, threads, _ in found} == {1}
    for process in {process for process, _, _ in found}:  # one copy a process: it has seen all tasks before
        seen = sorted(count for other, _, count in found if other == process)
        assert seen == list(range(2, 2 + len(seen)))


@pytest.mark.slow
def test_models_retrained_on_a_cluster_are_stored_on_this_machine(dask, small, tmp_path):
    target, samples = small
    removals = [np.array([row, row + 1]) for row in range(3)]
    here, there = (
        Retraining(target, samples, tmp_path / where[:4], workers=1, engine=where) for where in ("serial", dask)
    )
    for one, other in zip(here.states(removals), there.states(removals), strict=True):
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)
    assert sorted(os.listdir(here.directory)) == sorted(os.listdir(there.directory))


@pytest.mark.slow
def test_a_task_that_fails_three_times_is_named_and_the_other_results_are_returned(dask, refused, tmp_path):
    work, results = failing_task("bad one", tmp_path / "attempts"), []
    with refused("task 2 of 4 (bad one) failed 3 times", "cannot be done", "the other 3 are done"):
        for result in engine.run_tasks(work, ["a", "bad one", "c", "d"], engine=dask):
            results.append(result)
    assert sorted(results) == ["a", "c", "d"]
    assert (tmp_path / "attempts").read_text() == "xxx"


@pytest.mark.slow
def test_a_worker_that_is_killed_does_not_change_the_result(cluster, small, tmp_path):
    target, samples = small
    home, marker = os.getpid(), str(tmp_path / "killed")

    def deadly(logits, labels):
        """Cross-entropy that kills the first worker which is asked for it."""
        if os.getpid() != home:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return F.cross_entropy(logits, labels)

    fragile = ddm.Target(target.network, target.trajectory, deadly)
    here = files(fragile, samples, tmp_path / "here", "serial")
    assert not os.path.exists(marker)
    assert files(fragile, samples, tmp_path / "there", cluster) == here
    assert os.path.exists(marker)


@pytest.mark.parametrize("wrong", ["dusk://127.0.0.1:1", "dask", "dask://127.0.0.1", "ray://:5", "dask://a:b", ""])
def test_a_wrong_engine_is_refused(command, wrong):
    assert_refused(command("fit", "digits", "--limit", 40, "--engine", wrong), "engine", "dask://HOST:PORT", "ray")


@pytest.mark.parametrize("kind", ["dask", "ray"])
@pytest.mark.parametrize("arguments", [("fit", "digits"), ("audit", "run"), ("trace", "run"), ("bench", "fidelity")])
def test_a_cluster_that_does_not_answer_is_refused(command, kind, arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert_refused(command(*arguments, "--engine", f"{kind}://127.0.0.1:{port}"), kind.capitalize(), str(port))


@pytest.mark.slow
def test_a_second_ray_cluster_is_refused(ray, refused):
    from ray import get_runtime_context

    own = get_runtime_context().gcs_address
    Backend.parse(f"ray://{own}").check()
    with socket.create_server(("127.0.0.1", 0)) as other, refused(own, "already", "ray.shutdown()"):
        Backend.parse(f"ray://127.0.0.1:{other.getsockname()[1]}").check()


@pytest.mark.slow
def test_a_scheduler_without_workers_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("ddm.compute.backends.TIMEOUT", 1)
    file = tmp_path / "scheduler.json"
    with started("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)):
        while not (file.exists() and file.read_text().endswith("}")):
            time.sleep(0.05)
        with refused("no workers", "dask worker"):
            Backend.parse(json.loads(file.read_text())["address"].replace("tcp", "dask")).check()


@pytest.mark.parametrize("extra", ["dask", "ray"])
def test_a_missing_extra_is_refused_with_the_command_that_installs_it(refused, monkeypatch, extra):
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "ray": "ray"}[extra], None)
    with refused(f"pip install 'distilled-datamodel[{extra}]'"):
        Backend.parse(f"{extra}://127.0.0.1:1").check()
