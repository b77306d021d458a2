"""Running statistics are estimated again at every checkpoint but the last, for layers that updated them in training."""

import copy
import itertools
import math
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.compute.backends import Backend
from ddm.distil import Settings
from ddm.distil.gradient.matching import GradientMatching
from ddm.distil.response.solve import Responses
from ddm.networks.state import state_of
from ddm.training.statistics import with_estimated_statistics

RECIPE = ddm.Recipe(epochs=3, lr=0.05, batch_size=16, seed=1)


@pytest.fixture(scope="module")
def samples(digits):
    return digits.train[:100]


def trained(samples, *layers, recipe=RECIPE):
    """A target with these layers after a flattened input of 64 pixels, and ten outputs."""
    torch.manual_seed(0)
    return ddm.train(nn.Sequential(*copy.deepcopy(layers)), samples, recipe)


def flat_network(*norms):
    """Layers of a network with ``norms`` between linear layers of 8 units."""
    hidden = [layer for norm in norms for layer in (nn.Linear(8, 8), norm, nn.ReLU())]
    return [nn.Flatten(), nn.Linear(64, 8), *hidden, nn.Linear(8, 10)]


def image_network(norm):
    """Layers of a convolutional network with a normalisation of 4 channels."""
    return [nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)]


@pytest.fixture(scope="module")
def target(samples):
    """A target with two BatchNorm layers, 3 and 6."""
    return trained(samples, *flat_network(nn.BatchNorm1d(8), nn.BatchNorm1d(8)))


def estimated(target, samples):
    return with_estimated_statistics(target, samples, range(len(target.trajectory)))


def at_checkpoint(target, t):
    """The network with the recorded state of checkpoint ``t``, in evaluation mode."""
    return target.flat.module(*target.at(t))


def same_states(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- the estimate ---


def test_the_statistics_are_mean_and_variance_of_the_layers_inputs(target, samples):
    found = estimated(target, samples).statistics
    for t in range(3):
        network = at_checkpoint(target, t)
        with torch.no_grad():
            inputs = network[:3](samples.batch()[0])
            torch.testing.assert_close(found[t]["3.running_mean"], inputs.mean(0))
            torch.testing.assert_close(found[t]["3.running_var"], inputs.var(0))
            normalised = (inputs - inputs.mean(0)) / (inputs.var(0, correction=0) + 1e-5).sqrt()
            inputs = network[4:6](normalised * network[3].weight + network[3].bias)
            torch.testing.assert_close(found[t]["6.running_mean"], inputs.mean(0))
            torch.testing.assert_close(found[t]["6.running_var"], inputs.var(0))


def test_statistics_of_images_are_those_of_each_channel(samples):
    target = trained(samples, *image_network(nn.BatchNorm2d(4)))
    with torch.no_grad():
        inputs = at_checkpoint(target, 1)[0](samples.batch()[0]).transpose(0, 1).flatten(1)
    found = estimated(target, samples).statistics[1]
    torch.testing.assert_close(found["1.running_mean"], inputs.mean(1))
    torch.testing.assert_close(found["1.running_var"], inputs.var(1))


def test_an_instance_norm_that_tracks_statistics_gets_the_mean_over_the_samples(samples):
    target = trained(samples, *image_network(nn.InstanceNorm2d(4, track_running_stats=True)))
    with torch.no_grad():
        inputs = at_checkpoint(target, 1)[0](samples.batch()[0]).flatten(2)
    found = estimated(target, samples).statistics[1]
    torch.testing.assert_close(found["1.running_mean"], inputs.mean(2).mean(0))
    torch.testing.assert_close(found["1.running_var"], inputs.var(2).mean(0))


@pytest.mark.parametrize("count", [129, 300])
def test_the_statistics_of_several_batches_are_averaged(digits, count):
    """129 samples are two batches: 128 and 1 would fail, because one sample has no variance."""
    samples = digits.train[:count]
    target = trained(samples, *flat_network(nn.BatchNorm1d(8)), recipe=replace(RECIPE, batch_size=20))
    with torch.no_grad():
        inputs = at_checkpoint(target, 1)[:3](samples.batch()[0])
    found = estimated(target, samples).statistics[1]
    torch.testing.assert_close(found["3.running_mean"], inputs.mean(0), rtol=0.02, atol=0.02)
    torch.testing.assert_close(found["3.running_var"], inputs.var(0), rtol=0.1, atol=0.0)


def test_a_layer_that_is_used_twice_averages_both_uses(samples):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 10)

        def forward(self, x):
            x = x.flatten(1)
            return self.head(self.norm(x) + self.norm(3 * x + 1))

    target = ddm.train(Twice(), samples, RECIPE)
    x = samples.batch()[0].flatten(1)
    found = estimated(target, samples).statistics[1]["norm.running_mean"]
    torch.testing.assert_close(found, (x.mean(0) + (3 * x + 1).mean(0)) / 2)


def test_dropout_is_off_and_no_random_numbers_are_drawn(samples):
    with_dropout = trained(samples, *flat_network(nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(8))))
    before = torch.random.get_rng_state()
    found = estimated(with_dropout, samples).statistics[1]
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.no_grad():
        inputs = at_checkpoint(with_dropout, 1)[:3](samples.batch()[0])
    torch.testing.assert_close(found["3.1.running_mean"], inputs.mean(0))


def test_synchronised_batchnorm_does_not_wait_for_other_processes(samples, monkeypatch):
    plain = trained(samples, *flat_network(nn.BatchNorm1d(8)))
    network = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain.network))
    target = ddm.Target(network, plain.trajectory)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    found, wanted = estimated(target, samples).statistics, estimated(plain, samples).statistics
    assert all(same_states(found[t], wanted[t]) for t in range(3))


def test_the_estimate_is_the_same_each_time(target, samples):
    first, second = (estimated(target, samples).statistics for _ in range(2))
    assert all(same_states(first[t], second[t]) for t in first)


# --- which checkpoints and layers ---


def test_the_last_checkpoint_and_the_target_itself_keep_their_statistics(target, samples):
    before = [target.state(t) for t in range(4)]
    found = estimated(target, samples)
    assert set(found.statistics) == {0, 1, 2}
    assert same_states(found.state(-1), before[-1])
    assert torch.equal(found.outputs(samples.batch()[0]), target.outputs(samples.batch()[0]))
    assert all(same_states(target.state(t), before[t]) for t in range(4))
    assert found.fingerprint() == target.fingerprint()


def test_only_running_statistics_change(target, samples):
    found = estimated(target, samples)
    for t in range(3):
        one, other = found.state(t), target.state(t)
        changed = {name for name in one if not torch.equal(one[name], other[name])}
        assert changed == {f"{layer}.running_{kind}" for layer in (3, 6) for kind in ("mean", "var")}


@pytest.mark.parametrize(
    "norm",
    [
        nn.Identity(),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.BatchNorm2d(4, track_running_stats=False),
    ],
    ids=["none", "group", "instance", "untracked batch"],
)
def test_a_network_without_running_statistics_is_returned_as_it_is(samples, norm):
    target = trained(samples, *image_network(norm))
    assert estimated(target, samples) is target


def test_a_single_sample_changes_nothing(target, samples):
    assert estimated(target, samples[:1]) is target


def frozen(samples, layers):
    """A target with two BatchNorm layers. The user's loop keeps these layers in evaluation mode."""
    torch.manual_seed(0)
    network = nn.Sequential(*flat_network(nn.BatchNorm1d(8), nn.BatchNorm1d(8)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    recorder = ddm.Recorder(network)
    for _ in range(3):
        network.train()
        for layer in layers:
            network[layer].eval()
        for rows in torch.arange(len(samples)).split(20):
            x, y = samples.batch(rows)
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        recorder.snapshot(steps=5)
    return recorder.target()


def test_layers_that_the_user_froze_keep_their_statistics(samples):
    everything = frozen(samples, [3, 6])
    assert estimated(everything, samples) is everything
    found = estimated(frozen(samples, [3]), samples).statistics
    assert all(set(state) == {"6.running_mean", "6.running_var"} for state in found.values())


# --- what the estimate is for ---


def lagging(samples):
    """A target whose running statistics are far behind its weights."""
    norms = [nn.BatchNorm1d(8, momentum=0.01) for _ in range(4)]
    return trained(samples, *flat_network(*norms), recipe=ddm.Recipe(epochs=4, lr=0.3, momentum=0.9, batch_size=25))


def losses(target, samples):
    """The loss at every checkpoint in evaluation mode."""
    x, y = samples.batch()
    with torch.no_grad():
        return [float(F.cross_entropy(target.flat(*target.at(t), x), y)) for t in range(len(target.trajectory))]


def test_a_checkpoint_whose_statistics_lag_gets_the_loss_that_the_training_saw(samples):
    target = lagging(samples)
    x, y = samples.batch()
    recorded, found = losses(target, samples), losses(estimated(target, samples), samples)
    for t in range(1, 4):
        with torch.no_grad():
            seen = float(F.cross_entropy(at_checkpoint(target, t).train()(x), y))
        assert abs(found[t] - seen) < 0.2 * abs(recorded[t] - seen)


def test_effects_in_a_short_training_of_a_deep_network_are_of_the_size_that_retraining_shows(digits):
    """With the recorded statistics, the largest predicted effect was thousands of times the largest true one."""
    samples, (x, y) = digits.train, digits.test.batch()
    norms = [nn.BatchNorm1d(32) for _ in range(8)]
    hidden = [layer for norm in norms for layer in (nn.Linear(32, 32), norm, nn.ReLU())]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *hidden, nn.Linear(32, 10))
    recipe = ddm.Recipe(epochs=4, lr=0.2, momentum=0.9, batch_size=32)
    target = ddm.train(network, samples, recipe)
    groups = [torch.arange(start, len(samples), 8).numpy() for start in range(8)]
    responses = Responses(target, samples, Settings(curvature=2048), engine="serial")
    pulls = responses.pulls(groups)
    responses.choose_damping(pulls)
    moved = target.theta + responses.without_own(pulls, groups)[0]
    before = F.cross_entropy(target.outputs(x), y)
    predicted = [F.cross_entropy(target.flat(theta, target.fixed, x), y) - before for theta in moved]
    retrained = [ddm.train(network, samples, recipe, without=rows).outputs(x) for rows in groups]
    true = [F.cross_entropy(outputs, y) - before for outputs in retrained]
    assert max(map(abs, predicted)) < 20 * max(map(abs, true))  # rounding differs between processors


def test_responses_are_computed_with_estimated_statistics(samples):
    target = lagging(samples)
    responses = Responses(target, samples, Settings(curvature=64))
    wanted = estimated(target, samples)
    assert all(same_states(responses.target.state(t), wanted.state(t)) for t in range(1, 5))


def test_responses_leave_out_the_first_checkpoint_if_the_training_updated_statistics(target, samples):
    quick = Settings(curvature=64)
    assert Responses(target, samples, quick).checkpoints == [1, 2, 3]
    assert Responses(target, samples, replace(quick, checkpoints=2)).checkpoints == [1, 3]
    assert Responses(frozen(samples, [3, 6]), samples, quick).checkpoints == [0, 1, 2, 3]
    assert Responses(trained(samples, *image_network(nn.GroupNorm(2, 4))), samples, quick).checkpoints == [0, 1, 2, 3]


def test_a_training_of_one_epoch_uses_its_last_checkpoint_alone(samples):
    target = trained(samples, *flat_network(nn.BatchNorm1d(8)), recipe=replace(RECIPE, epochs=1))
    responses = Responses(target, samples, Settings(curvature=64))
    assert responses.checkpoints == [1]
    assert responses.curvature.solve(responses.pulls([torch.arange(10).numpy()])).isfinite().all()


def test_all_checkpoints_are_estimated_if_the_learning_rates_are_unknown(samples):
    target = frozen(samples, [])
    assert math.isnan(target.trajectory.cumulative_rates[-1])
    responses = Responses(target, samples, Settings(curvature=64, checkpoints=2))
    assert set(responses.target.statistics) == {0, 1, 2}


@pytest.mark.parametrize("matching", ["reverse", "forward"])
def test_gradient_matching_uses_estimated_statistics(target, samples, matching):
    work = GradientMatching(target, samples, Settings(matching=matching, steps=1))
    assert set(work.target.statistics) == {0, 1, 2}


# --- workers ---


@pytest.mark.parametrize("stored", [False, True])
def test_workers_see_the_estimated_statistics_of_the_same_checkpoints(target, samples, tmp_path, stored):
    if stored:
        target = ddm.Target(target.network, target.trajectory.save(tmp_path))
    found = estimated(target, samples)
    for kind, checkpoints in itertools.product(["processes", "dask://host:1"], [[0, 2, 3], [1, 3]]):
        local = pickle.loads(pickle.dumps(found.for_workers(checkpoints, Backend.parse(kind))))
        numbers = checkpoints if len(local.trajectory) == 4 else range(len(checkpoints))
        for t, number in zip(checkpoints, numbers, strict=True):
            assert same_states(local.state(number), found.state(t))


@pytest.mark.parametrize("stored", [False, True])
def test_pulls_are_the_same_bits_in_processes(target, samples, tmp_path, stored):
    if stored:
        target = ddm.Target(target.network, target.trajectory.save(tmp_path))
    groups = [torch.arange(start, 100, 5).numpy() for start in range(5)]
    settings = Settings(curvature=64, checkpoints=3)
    serial, processes = (
        Responses(target, samples, settings, engine=engine).pulls(groups) for engine in ("serial", "processes")
    )
    assert torch.equal(serial, processes)


def test_the_network_of_the_target_is_not_touched(target, samples):
    before = state_of(target.network)
    estimated(target, samples)
    assert same_states(state_of(target.network), before)
    assert not target.network.training
