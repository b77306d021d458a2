"""Exact unlearning: retrained models are exact, saved as soon as training ends, and reused after a kill."""

import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F

import ddm
import ddm.groups.partition
from ddm.compute.tensors import read_tensors
from ddm.networks.state import state_of
from ddm.truth.code_hash import hash_of_code
from ddm.truth.retraining import Retraining, group_rows

RECIPE = ddm.Recipe(epochs=2, batch_size=32)
NOTHING = np.array([], dtype=np.int64)
ROWS = np.arange(10, 30)


@pytest.fixture(scope="module")
def samples():
    return ddm.datasets.load("digits", limit=120).train


@pytest.fixture(scope="module")
def target(samples):
    return ddm.train(tiny(), samples, RECIPE)


def tiny(**options):
    return ddm.networks.ConvNet(width=4, depth=1, **options)


def models(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


# --- retrained models ---


def test_retraining_equals_training_without_the_rows_bit_for_bit(target, samples, tmp_path):
    retraining = Retraining(target, samples, tmp_path, workers=1)
    for order in (0, 1):
        recipe = replace(RECIPE, seed=order)
        for state, rows in zip(retraining.states([NOTHING, ROWS], order), (None, ROWS), strict=True):
            assert same_tensors(state, state_of(ddm.train(tiny(), samples, recipe, without=rows).network))


def test_a_target_with_the_largest_seed_has_other_batch_orders_too(samples, tmp_path):
    largest = replace(RECIPE, epochs=1, seed=2**32 - 1)
    target = ddm.train(tiny(), samples, largest)
    orders = [next(Retraining(target, samples, tmp_path, workers=1).states([NOTHING], order)) for order in range(3)]
    assert same_tensors(orders[0], state_of(target.network))
    for order in (1, 2):
        recipe = replace(largest, seed=order - 1)
        assert same_tensors(orders[order], state_of(ddm.train(tiny(), samples, recipe).network))


def test_retraining_on_all_samples_in_the_targets_batch_order_gives_the_target(target, samples, tmp_path):
    state, other = (next(Retraining(target, samples, tmp_path, workers=1).states([NOTHING], order)) for order in (0, 1))
    assert same_tensors(state, target.trajectory[-1])
    assert not same_tensors(other, state)


def test_a_union_of_groups_is_the_union_of_their_rows(target, samples, tmp_path):
    partition = ddm.groups.partition.classwise(samples)
    removed = np.zeros((2, 10), dtype=bool)
    removed[0, [2, 7]] = removed[1, 3] = True
    union, single = group_rows(partition, removed)
    assert union.tolist() == np.union1d(partition.members("2"), partition.members("7")).tolist()
    assert single.tolist() == partition.members("3").tolist()
    x, _ = samples[:6].batch()
    outputs = Retraining(target, samples, tmp_path, workers=1).outputs([union, single], 0, x)
    assert outputs.shape == (2, 6, 10)
    for found, rows in zip(outputs, (union, single), strict=True):
        assert torch.equal(found, ddm.train(tiny(), samples, RECIPE, without=rows).outputs(x))


def test_outputs_use_the_statistics_of_the_retrained_model(samples, tmp_path):
    network = tiny(norm="batch")
    target = ddm.train(network, samples, RECIPE)
    x, _ = samples[:6].batch()
    found = Retraining(target, samples, tmp_path, workers=1).outputs([ROWS], 0, x)[0]
    again = ddm.train(network, samples, RECIPE, without=ROWS).network.eval()
    assert torch.equal(found, again(x).detach())


# --- saved models ---


class Loop:
    """The user's own training loop, which counts its calls."""

    def __init__(self, folder, start):
        self.folder, self.start, self.asked, self.seen = folder, start, [], []

    def __call__(self, rows, order):
        self.asked.append((rows.tolist(), order))
        self.seen.append(len(models(self.folder)))
        network = nn.Linear(2, 2)
        network.load_state_dict(self.start)
        network.bias.data += torch.tensor([float(len(rows)), float(order)])
        return network


@pytest.fixture
def own(tmp_path):
    """A target trained by the user's own loop, its training samples, and the loop."""
    random = np.random.default_rng(0)
    samples = ddm.Samples.from_arrays(random.normal(size=(20, 2)), np.arange(20) % 2)
    network = nn.Linear(2, 2)
    recorder = ddm.Recorder(network)
    recorder.snapshot()
    return recorder.target(), samples, Loop(tmp_path, network.state_dict())


def test_a_target_of_the_users_own_loop_is_retrained_by_that_loop(own, tmp_path):
    target, samples, loop = own
    x, _ = samples[:3].batch()
    outputs = Retraining(target, samples, tmp_path, retrain=loop, workers=1).outputs([NOTHING, ROWS - 10], 2, x)
    expected = target.outputs(x)
    assert torch.allclose(outputs[0], expected + torch.tensor([0.0, 2.0]))
    assert torch.allclose(outputs[1], expected + torch.tensor([20.0, 2.0]))


def test_a_target_of_the_users_own_loop_cannot_be_retrained_without_that_loop(own, tmp_path, refused):
    target, samples, _ = own
    with refused("loop of your own", "by=", "retrain=", "positions"):
        Retraining(target, samples, tmp_path)


def test_models_are_saved_when_their_training_ends_and_never_trained_twice(own, tmp_path):
    target, samples, loop = own
    removals = [np.array([3, 1, 2]), NOTHING, np.array([7])]
    retraining = Retraining(target, samples, tmp_path, retrain=loop, workers=1)
    retraining.run(removals, [0, 1])
    assert loop.seen == [0, 1, 2, 3, 4, 5]
    assert sorted(loop.asked) == sorted((sorted(rows.tolist()), order) for rows in removals for order in (0, 1))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for again in (retraining, Retraining(target, samples, tmp_path, retrain=loop, workers=1)):
        again.run([*removals, np.array([2, 3, 1])], [1, 0])  # in any order
        list(again.states(removals, 1))
        again.mean_seconds(removals)
        again.outputs(removals, 0, samples.batch()[0])
    assert len(loop.asked) == 6
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert retraining.parameter_bytes(removals) == len(removals) * (4 + 2) * 4  # Linear(2, 2) in single precision


def softer(logits, labels):
    return F.cross_entropy(logits / 2, labels)


def frozen():
    network = tiny()
    network.blocks.requires_grad_(False)
    return network


@pytest.mark.parametrize(
    ("network", "change"),
    [
        (tiny, {"recipe": replace(RECIPE, lr=0.05)}),
        (tiny, {"recipe": replace(RECIPE, momentum=0.5)}),
        (tiny, {"loss": softer}),
        (tiny, {"data": "relabelled"}),
        (lambda: tiny(seed=1), {}),
        (lambda: tiny(pooling="max"), {}),
        (frozen, {}),
    ],
    ids=["lr", "momentum", "loss", "data", "first weights", "pooling", "frozen part"],
)
def test_saved_models_of_another_training_are_not_used(target, samples, tmp_path, network, change):
    Retraining(target, samples, tmp_path, workers=1).run([ROWS], [0])
    used = samples
    if "data" in change:
        used = replace(samples, labels=samples.labels.roll(1))
    how = {"recipe": change.get("recipe", RECIPE), "loss": change.get("loss", F.cross_entropy)}
    other = ddm.train(network(), used, **how)
    state = next(Retraining(other, used, tmp_path, workers=1).states([ROWS]))
    assert same_tensors(state, state_of(ddm.train(network(), used, without=ROWS, **how).network))
    assert len(models(tmp_path)) == 2


def test_a_truncated_model_is_refused_and_the_message_names_the_file(target, samples, tmp_path, refused):
    retraining = Retraining(target, samples, tmp_path, workers=1)
    retraining.run([ROWS], [0])
    path = next(tmp_path.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-7])
    with refused(path.name, "delete it, and it is trained again"):
        list(retraining.states([ROWS]))


def test_a_partial_file_of_a_killed_process_is_ignored(target, samples, tmp_path):
    retraining = Retraining(target, samples, tmp_path, workers=1)
    retraining.run([ROWS], [0])
    path = next(tmp_path.glob("*.safetensors"))
    path.rename(tmp_path / f".{path.name}.half")
    (tmp_path / f".{path.name}.half").write_bytes(b"half")
    assert same_tensors(
        next(retraining.states([ROWS])), state_of(ddm.train(tiny(), samples, RECIPE, without=ROWS).network)
    )


KILLED = """
import sys
import numpy as np
import ddm
from ddm.truth.retraining import Retraining
samples = ddm.datasets.load("digits", limit=120).train
recipe = ddm.Recipe(epochs=2, batch_size=32)
target = ddm.train(ddm.networks.ConvNet(width=4, depth=1), samples, recipe)
Retraining(target, samples, sys.argv[1], workers=1).run([np.array([row]) for row in range(60)], [0])
"""


def test_a_killed_retraining_resumes_to_the_same_results(target, samples, tmp_path):
    removals = [np.array([row]) for row in range(60)]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(killed)], env=env)
    try:
        while len(models(killed)) < 3:
            assert process.poll() is None
            for name in models(killed):
                read_tensors(killed / name)  # every visible file is complete
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = {path: path.stat().st_mtime_ns for path in killed.glob("*.safetensors")}
    assert 3 <= len(kept) < len(removals)
    for folder in (killed, whole):
        Retraining(target, samples, folder, workers=1).run(removals, [0])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert models(killed) == models(whole)
    assert len(models(whole)) == len(removals)
    for name in models(whole):
        assert same_tensors(read_tensors(killed / name), read_tensors(whole / name))


# --- a loop whose code has changed ---


def function(body, **known):
    """The user's own retraining function with this body, as if its source file had been edited."""
    known = {"nn": nn, "torch": torch, **known}
    exec(f"def retrain(rows, order, bias=1.0):\n    network = nn.Linear(2, 2)\n    {body}\n    return network", known)
    return known["retrain"]


def closing_over(value):
    def retrain(rows, order):
        network = nn.Linear(2, 2)
        nn.init.constant_(network.weight, value)
        return network

    return retrain


class Trainer:
    """The user's own training loop as an object with settings."""

    def __init__(self, lr):
        self.lr, self.log = lr, []

    def __call__(self, rows, order):
        self.log.append(order)
        return nn.Linear(2, 2)


def of_class(width):
    """A training loop that builds a network from the user's own class."""
    known = {"nn": nn, "__name__": "mine"}
    made = f"self.layer = nn.Linear(2, {width})"
    exec(f"class Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {made}", known)
    return function("network.extra = Mine()", Mine=known["Mine"])


BODY = "nn.init.constant_(network.weight, 2.0)"
HELPED = "set_to(network)"


def helper(value):
    known = {"nn": nn, "__name__": "mine"}
    exec(f"def set_to(network):\n    nn.init.constant_(network.weight, {value})", known)
    return known["set_to"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (function(BODY), function(BODY.replace("2.0", "3.0"))),
        (function(BODY), function(BODY.replace("constant_(network.weight, 2.0)", "zeros_(network.weight)"))),
        (function(f"{BODY.replace('2.0', 'lr')}", lr=0.1), function(f"{BODY.replace('2.0', 'lr')}", lr=0.2)),
        (closing_over(1.0), closing_over(2.0)),
        (function(HELPED, set_to=helper(1.0)), function(HELPED, set_to=helper(2.0))),
        (functools.partial(function(BODY), bias=1.0), functools.partial(function(BODY), bias=2.0)),
        (Trainer(0.1), Trainer(0.2)),
        (Trainer(0.1).__call__, Trainer(0.2).__call__),
        (of_class(3), of_class(4)),
    ],
    ids=["constant", "call", "global", "closure", "helper", "partial", "object", "method", "class"],
)
def test_models_are_trained_again_if_the_code_of_the_loop_changes(own, tmp_path, first, second):
    target, samples, _ = own
    Retraining(target, samples, tmp_path, retrain=first, workers=1).run([ROWS - 10], [0])
    assert Retraining(target, samples, tmp_path, retrain=first, workers=1).count_missing([ROWS - 10]) == 0
    assert Retraining(target, samples, tmp_path, retrain=second, workers=1).count_missing([ROWS - 10]) == 1


def test_models_are_reused_if_the_loop_only_moves_in_its_file(own, tmp_path):
    target, samples, _ = own
    Retraining(target, samples, tmp_path, retrain=function(BODY), workers=1).run([ROWS - 10], [0])
    moved = function(f"\n\n    {BODY}")
    assert Retraining(target, samples, tmp_path, retrain=moved, workers=1).count_missing([ROWS - 10]) == 0


def test_models_are_reused_if_the_loop_calls_the_target_which_caches_results(own, tmp_path):
    """The target changes while it is used, because it caches what it has computed."""
    target, samples, _ = own

    def retrain(rows, order):
        target.outputs(samples.batch()[0])
        return target.flat.module(target.theta, target.fixed)

    for missing in (1, 0):
        retraining = Retraining(target, samples, tmp_path, retrain=retrain, workers=1)
        assert retraining.count_missing([ROWS - 10]) == missing
        retraining.run([ROWS - 10], [0])


def test_models_are_trained_again_if_the_code_of_the_loss_changes(target, samples, tmp_path):
    missing = []
    for factor in (2.0, 2.0, 3.0):
        known = {"F": F}
        exec(f"def mine(logits, labels):\n    return {factor} * F.cross_entropy(logits, labels)", known)
        other = ddm.Target(target.network, target.trajectory, known["mine"], target.recipe, data=target.data)
        retraining = Retraining(other, samples, tmp_path, workers=1)
        missing.append(retraining.count_missing([ROWS]))
        retraining.run([ROWS], [0])
    assert missing == [1, 0, 1]


def test_the_code_of_this_package_counts_by_name_only(monkeypatch):
    loop = function("network.trained = train", train=ddm.train)
    before = hash_of_code(loop)
    monkeypatch.setattr(ddm.train, "__kwdefaults__", {**ddm.train.__kwdefaults__, "device": "elsewhere"})
    assert hash_of_code(loop) == before


def test_the_code_hash_of_a_loop_is_the_same_in_another_process():
    code = "from ddm.truth.code_hash import hash_of_code\nfrom test_retraining import closing_over\n"
    code += "print(hash_of_code(closing_over({1, 'a', 2.5})))"
    folder = os.path.dirname(__file__)
    found = set()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
        found.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(found) == 1


def test_a_relative_folder_stays_valid_when_the_working_directory_changes(own, tmp_path, monkeypatch):
    target, samples, loop = own
    monkeypatch.chdir(tmp_path)
    retraining = Retraining(target, samples, "models", retrain=loop, workers=1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    retraining.run([ROWS - 10], [0])
    assert len(models(tmp_path / "models")) == 1
    assert os.listdir() == []
