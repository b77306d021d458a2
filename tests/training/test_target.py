"""Training is reproducible, resumable, and equal to a plain loop over the same batches."""

import copy
import itertools
import math
import os
import random
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F

import ddm
from ddm import Recipe, Recorder, Samples, Target, Trajectory, train
from ddm.compute import precision
from ddm.networks.state import state_of


class Killed(BaseException):
    """Stands for a kill: no code catches it."""


COUNT = 24
PLAIN = Recipe(epochs=3, lr=0.2, batch_size=7, seed=1)
LATER = {"nesterov": True, "warmup": 1, "clip_norm": 0.5}


def samples(count=COUNT):
    """Samples whose label is their position, so that a loss can record which samples are in a batch."""
    generator = torch.Generator().manual_seed(5)
    return Samples.from_arrays(torch.randn(count, 1, 6, 6, generator=generator), torch.arange(count))


def linear(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, COUNT))


def fragile(seed=0):
    """A network with everything a resumed training could get wrong: running statistics and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(), nn.Linear(48, COUNT)
        )


class Watched:
    """Cross-entropy that records the samples of each batch, and raises ``Killed`` at call number ``until``."""

    def __init__(self, until=None):
        self.batches, self.until = [], until

    def __call__(self, logits, labels):
        self.batches.append(labels.tolist())
        if len(self.batches) == self.until:
            raise Killed
        return F.cross_entropy(logits, labels)


def batches_of(recipe):
    """The batches of a training, as lists of positions."""
    watched = Watched()
    train(linear(), samples(), recipe, loss=watched)
    return watched.batches


def plain_loop(network, data, batches, rates, recipe):
    """States before training and after each step of a plain loop over ``batches`` with learning rates ``rates``."""
    network = copy.deepcopy(network).train()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    states = [state_of(network)]
    for rows, rate in zip(batches, rates, strict=True):
        if rows:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            x, y = data.batch(rows)
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        states.append(state_of(network))
    return states


def same(one, other):
    """True if two trajectories are identical, bit for bit."""
    return (
        one.steps == other.steps
        and one.cumulative_rates == other.cumulative_rates
        and one.seen == other.seen
        and all(same_tensors(one.moments(t) or {}, other.moments(t) or {}) for t in range(len(one)))
        and all(same_tensors(a, b) for a, b in zip(one, other, strict=True))
    )


# --- reproducible ---


def test_the_same_seed_gives_the_same_trajectory_bit_for_bit():
    recipe = Recipe(epochs=2, batch_size=5, momentum=0.9, augment="flip-shift", seed=3)
    assert same(train(fragile(), samples(), recipe).trajectory, train(fragile(), samples(), recipe).trajectory)


def test_another_seed_gives_another_trajectory_from_the_same_start():
    one = train(linear(), samples(), Recipe(epochs=1, batch_size=5, seed=0)).trajectory
    other = train(linear(), samples(), Recipe(epochs=1, batch_size=5, seed=1)).trajectory
    assert same_tensors(one[0], other[0])
    assert not same_tensors(one[1], other[1])


def test_global_random_generators_are_neither_used_nor_changed():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - this test is about the global generator
    random.seed(0)
    one = train(fragile(), samples(), PLAIN)
    expected = [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    assert [torch.rand(1).item(), np.random.rand(), random.random()] == expected  # noqa: NPY002
    torch.manual_seed(77)
    assert same(one.trajectory, train(fragile(), samples(), PLAIN).trajectory)


def test_training_does_not_change_the_given_network():
    network = fragile()
    before = state_of(network)
    target = train(network, samples(), PLAIN)
    assert same_tensors(before, state_of(network))
    assert same_tensors(before, target.trajectory[0])
    assert network.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


def test_every_epoch_uses_every_sample_once_in_a_new_order():
    batches = batches_of(PLAIN)
    assert [len(batch) for batch in batches] == [7, 7, 7, 3] * 3
    epochs = [list(itertools.chain(*batches[start : start + 4])) for start in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


# --- equal to a plain loop ---

COSINE = [0.2 * 0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]
STEP = [0.2] * 6 + [0.2 * 0.1] * 3 + [0.2 * 0.01] * 3


@pytest.mark.parametrize(("schedule", "rates"), [("constant", [0.2] * 12), ("cosine", COSINE), ("step", STEP)])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_training_equals_a_plain_loop_with_torchs_sgd(schedule, rates, momentum, weight_decay):
    recipe = Recipe(3, 0.2, 7, momentum, weight_decay, schedule, checkpoint_every=1, seed=1)
    trajectory = train(linear(), samples(), recipe).trajectory
    expected = plain_loop(linear(), samples(), batches_of(recipe), rates, recipe)
    assert all(same_tensors(one, other) for one, other in zip(trajectory, expected, strict=True))
    assert trajectory.cumulative_rates == pytest.approx([0.0, *(sum(rates[:t]) / (1 - momentum) for t in range(1, 13))])


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adam_equals_torchs_and_stores_the_mean_second_moment_of_each_parameter(weight_decay):
    recipe = Recipe(3, 0.01, 7, weight_decay=weight_decay, checkpoint_every=2, seed=1, optimizer="adam")
    trajectory = train(linear(), samples(), recipe).trajectory
    network = linear().train()
    optimizer = torch.optim.Adam(network.parameters(), 0.01, weight_decay=weight_decay)
    moments = {name: [] for name, _ in network.named_parameters()}
    for step, rows in enumerate(batches_of(recipe)):
        optimizer.zero_grad()
        x, y = samples().batch(rows)
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
        for name, parameter in network.named_parameters():
            moments[name].append(optimizer.state[parameter]["exp_avg_sq"] / (1 - 0.999 ** (step + 1)))
        if step % 2:
            assert same_tensors(trajectory[(step + 1) // 2], state_of(network))
    for t in range(1, len(trajectory)):
        for name, seconds in moments.items():
            torch.testing.assert_close(trajectory.moments(t)[name], sum(seconds[2 * t - 2 : 2 * t]) / 2)
            sums = trajectory.seen[t].tensors[name]
            assert (sums.rate, sums.coupled) == pytest.approx((0.02, 0.02 * weight_decay))
    assert trajectory.cumulative_rates[-1] == pytest.approx(0.12)


def test_adam_with_a_momentum_is_refused(refused):
    with refused("momentum"):
        Recipe(optimizer="adam", momentum=0.5)


@pytest.mark.parametrize(
    ("every", "steps"),
    [(None, [0, 4, 8, 12]), (1, list(range(13))), (3, [0, 3, 6, 9, 12]), (5, [0, 5, 10, 12]), (100, [0, 12])],
)
def test_a_checkpoint_is_stored_after_each_epoch_or_every_few_steps_and_at_the_end(every, steps):
    recipe = Recipe(epochs=3, lr=0.2, batch_size=7, checkpoint_every=every, seed=1)
    trajectory = train(linear(), samples(), recipe).trajectory
    expected = plain_loop(linear(), samples(), batches_of(recipe), [0.2] * 12, recipe)
    assert trajectory.steps == steps
    assert all(same_tensors(trajectory[t], expected[step]) for t, step in enumerate(steps))


def test_inputs_are_augmented_when_the_recipe_says_so():
    plain, augmented = (train(linear(), samples(), Recipe(epochs=1, augment=kind)) for kind in ("none", "shift"))
    assert not torch.equal(plain.theta, augmented.theta)


def test_a_plain_torch_dataset_trains_as_the_same_samples_do():
    x, y = samples().batch()
    assert same(
        train(linear(), torch.utils.data.TensorDataset(x, y), PLAIN).trajectory,
        train(linear(), samples(), PLAIN).trajectory,
    )


def test_a_network_in_double_precision_is_trained_in_double_precision():
    target = train(linear().double(), samples(), PLAIN)
    assert target.theta.dtype == torch.float64
    torch.testing.assert_close(target.theta.float(), train(linear(), samples(), PLAIN).theta)


# --- leaving samples out ---


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT - 1), st.sampled_from([0.0, 0.9]))
def test_leaving_samples_out_removes_them_from_their_batches_and_changes_nothing_else(rows, momentum):
    recipe = Recipe(epochs=2, lr=0.2, batch_size=4, momentum=momentum, schedule="cosine", checkpoint_every=1)
    batches = [[row for row in batch if row not in rows] for batch in batches_of(recipe)]
    rates = [0.2 * 0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]
    expected = plain_loop(linear(), samples(), batches, rates, recipe)
    watched = Watched()
    trajectory = train(linear(), samples(), recipe, loss=watched, without=np.array(sorted(rows))).trajectory
    assert watched.batches == [batch for batch in batches if batch]
    assert all(same_tensors(one, other) for one, other in zip(trajectory, expected, strict=True))


def test_leaving_samples_out_does_not_change_how_the_others_are_augmented():
    seen = []

    class Seen(nn.Module):
        def forward(self, x):
            seen.append(x.clone())
            return x

    recipe = Recipe(epochs=2, batch_size=COUNT, augment="flip-shift")
    with_all, without = Watched(), Watched()
    train(nn.Sequential(Seen(), linear()), samples(), recipe, loss=with_all)
    all_seen = [x for x in seen if len(x) == COUNT]
    seen.clear()
    train(nn.Sequential(Seen(), linear()), samples(), recipe, loss=without, without=np.array([3, 11]))
    kept_seen = [x for x in seen if len(x) == COUNT - 2]
    for epoch in range(2):
        stay = [row not in (3, 11) for row in with_all.batches[epoch]]
        assert torch.equal(all_seen[epoch][stay], kept_seen[epoch])


@pytest.mark.parametrize("nothing", [np.array([], dtype=np.int64), np.array([]), []])
def test_leaving_no_samples_out_equals_training_on_all(nothing):
    assert same(
        train(linear(), samples(), PLAIN, without=nothing).trajectory, train(linear(), samples()[:], PLAIN).trajectory
    )


def test_positions_that_do_not_exist_cannot_be_left_out(refused):
    with refused(str(COUNT)):
        train(linear(), samples(), PLAIN, without=np.array([COUNT]))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_batch_whose_samples_are_all_left_out_changes_no_parameters(optimizer):
    recipe = Recipe(epochs=2, lr=0.01, batch_size=4, checkpoint_every=1, optimizer=optimizer)
    first, *_ = batches_of(recipe)
    trajectory = train(linear(), samples(), recipe, without=np.array(first)).trajectory
    assert trajectory.steps == [0, *range(1 + 2 * 6 - 1)]  # no optimizer step for the empty batch
    assert same_tensors(trajectory[0], trajectory[1])
    assert not same_tensors(trajectory[1], trajectory[2])
    assert trajectory.cumulative_rates[1] == 0 < trajectory.cumulative_rates[2]


# --- weights of samples ---


def weights_of(rows, weight):
    weights = np.ones(COUNT)
    weights[rows] = weight
    return weights


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_0_equals_leaving_a_sample_out_bit_for_bit(optimizer):
    recipe = Recipe(epochs=2, lr=0.1, batch_size=4, optimizer=optimizer)
    rows = np.array([0, 2, 5, 11])
    left_out = train(linear(), samples(), recipe, without=rows).trajectory
    assert same(train(linear(), samples(), recipe, weights=weights_of(rows, 0)).trajectory, left_out)
    mixed = train(linear(), samples(), recipe, without=rows[:1], weights=weights_of(rows[1:], 0)).trajectory
    assert same(mixed, left_out)
    assert same(
        train(linear(), samples(), recipe, weights=np.ones(COUNT)).trajectory,
        train(linear(), samples(), recipe).trajectory,
    )


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda f, y: F.cross_entropy(f, y), nn.CrossEntropyLoss()])
def test_weight_2_equals_having_a_sample_twice(loss):
    rows = [1, 4, 4 + 3]
    recipe = Recipe(epochs=3, lr=0.2, batch_size=2 * COUNT)  # all samples in one batch
    twice = samples()[[*range(COUNT), *rows]]
    weighted = train(linear(), samples(), recipe, loss=loss, weights=weights_of(rows, 2))
    torch.testing.assert_close(weighted.theta, train(linear(), twice, recipe, loss=loss).theta)
    assert not torch.allclose(weighted.theta, train(linear(), samples(), recipe, loss=loss).theta, atol=1e-4)


def test_only_ratios_of_weights_matter_for_a_mean_and_their_size_too_for_a_sum():
    recipe, weights = Recipe(epochs=2, lr=0.1, batch_size=4), np.linspace(0.5, 2, COUNT)
    one, other = (train(linear(), samples(), recipe, weights=factor * weights).theta for factor in (1, 3))
    torch.testing.assert_close(one, other)
    total = nn.CrossEntropyLoss(reduction="sum")
    one = train(linear(), samples(), Recipe(epochs=2, lr=0.03, batch_size=4), loss=total, weights=weights)
    other = train(linear(), samples(), Recipe(epochs=2, lr=0.01, batch_size=4), loss=total, weights=3 * weights)
    torch.testing.assert_close(one.theta, other.theta)


@pytest.mark.parametrize(
    "weights",
    [np.ones(COUNT - 1), weights_of([3], -1), weights_of([3], np.nan), weights_of([3], np.inf), ["a"] * COUNT],
)
def test_bad_weights_are_refused(refused, weights):
    with refused("at least 0", str(COUNT)):
        train(linear(), samples(), PLAIN, weights=weights)


def test_weights_that_are_all_0_are_refused(refused):
    with refused("keep at least one"):
        train(linear(), samples(), PLAIN, weights=np.zeros(COUNT))


def test_weights_with_a_loss_that_is_neither_a_mean_nor_a_sum_are_refused(refused):
    loss = nn.CrossEntropyLoss(weight=torch.linspace(1, 3, COUNT))
    with refused("mean or a sum"):
        train(linear(), samples(), PLAIN, loss=loss, weights=np.linspace(0.5, 2, COUNT))


def test_resuming_with_other_weights_is_refused(tmp_path, refused):
    first = train(linear(), samples(), PLAIN, directory=tmp_path, weights=weights_of([1], 2))
    for weights in (None, weights_of([1], 3)):
        with refused("another data", str(tmp_path)):
            train(linear(), samples(), PLAIN, directory=tmp_path, weights=weights)
    again = train(linear(), samples(), PLAIN, directory=tmp_path, weights=weights_of([1], 2))
    assert same(again.trajectory, first.trajectory)


def test_a_datamodel_of_a_target_with_weights_or_samples_left_out_is_refused(refused):
    for changes in ({"weights": weights_of([1], 2)}, {"without": np.array([1])}):
        target = train(linear(), samples(), PLAIN, **changes)
        with refused("weights of samples"):
            ddm.DistilledDatamodel.fit(target, samples(), clusters=1)


class Idle(nn.Module):
    """A network with a parameter that its forward pass does not use."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = linear(), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_unused_parameter_does_not_change(optimizer, tmp_path):
    recipe = Recipe(epochs=2, lr=0.01, batch_size=7, optimizer=optimizer)
    target = train(Idle(), samples(), recipe)
    assert torch.equal(target.trajectory[-1]["idle"], torch.ones(3))
    train_until_killed(6, Idle(), samples(), recipe, directory=tmp_path)  # in the second epoch
    assert same(target.trajectory, train(Idle(), samples(), recipe, directory=tmp_path).trajectory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the quality of the synset does not matter here
        datamodel = ddm.DistilledDatamodel.fit(target, samples(), partition=np.arange(COUNT) % 3, curvature=32, bank=4)
    scores = datamodel.attribute(samples()[:1]).scores
    assert np.isfinite(scores).all()
    assert np.any(scores != 0)


# --- on disk ---


def test_a_trajectory_on_disk_equals_the_one_in_memory(tmp_path):
    in_memory, on_disk = (train(fragile(), samples(), PLAIN, directory=where) for where in (None, tmp_path / "a" / "b"))
    assert same(in_memory.trajectory, on_disk.trajectory)
    assert same(in_memory.trajectory, Trajectory.open(tmp_path / "a" / "b"))
    x, _ = samples().batch()
    assert torch.equal(in_memory.outputs(x), on_disk.outputs(x))
    assert in_memory.fingerprint() == on_disk.fingerprint()


def test_mixed_precision_is_refused_before_anything_is_written_if_the_processor_crashes_in_bfloat16(
    no_bfloat16, refused, tmp_path
):
    recipe = Recipe(epochs=1, amp=True)
    with refused("mixed precision", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", "without amp"):
        train(linear(), samples(), recipe, directory=tmp_path / "target")
    assert os.listdir(tmp_path) == []
    train(linear(), samples(), replace(recipe, amp=False))


def test_bfloat16_counts_as_working_if_the_check_fails_without_a_crash(no_bfloat16, monkeypatch):
    assert not precision.bfloat16_works()
    precision.bfloat16_works.cache_clear()
    monkeypatch.setattr(precision, "_CHILD", (sys.executable, "-c", "raise MemoryError"))
    assert precision.bfloat16_works()


def test_bfloat16_is_checked_once_per_process(no_bfloat16, monkeypatch):
    assert not precision.bfloat16_works()
    monkeypatch.setattr(precision, "_CHILD", ("there-is-no-such-program",))
    assert not precision.bfloat16_works()


@pytest.mark.usefixtures("bfloat16")
def test_mixed_precision_computes_logits_in_bfloat16_and_updates_float32_parameters():
    recipe = Recipe(epochs=1, lr=0.1, batch_size=7, checkpoint_every=1)
    x, y = samples().batch(batches_of(recipe)[0])
    result = train(linear(), samples(), replace(recipe, amp=True)).trajectory[1]
    network = linear()
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(x)
    assert logits.dtype == torch.bfloat16
    F.cross_entropy(logits.float(), y).backward()
    expected = {name: p.detach() - 0.1 * p.grad for name, p in network.named_parameters()}
    assert {tensor.dtype for tensor in result.values()} == {torch.float32}
    torch.testing.assert_close(result, expected)
    assert not same_tensors(result, train(linear(), samples(), recipe).trajectory[1])


@pytest.mark.parametrize(
    "later", [{"amp": True}, {"momentum": 0.9, "nesterov": True}, {"warmup": 2}, {"clip_norm": 0.5}], ids=str
)
def test_a_recipe_stores_later_options_only_if_they_are_on(later):
    assert Recipe(**Recipe(**later).to_dict()) == Recipe(**later)
    assert later.keys() <= Recipe(**later).to_dict().keys()
    assert not {"amp", "nesterov", "warmup", "clip_norm"} & Recipe().to_dict().keys()


def train_until_killed(until, *args, **options):
    with pytest.raises(Killed):
        train(*args, loss=Watched(until), **options)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from([None, 1, 3, 5]),
    st.sampled_from([{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"momentum": 0.9, **LATER}]),
    st.sampled_from([linear, fragile]),
)
def test_a_training_killed_in_any_step_resumes_to_the_same_result(kills, every, how, network):
    assert_resumes(kills, every, how, network)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("network", [linear, fragile])
def test_a_killed_training_with_mixed_precision_resumes_to_the_same_result(network):
    assert_resumes([7, 3], None, {"amp": True}, network)


def assert_resumes(kills, every, how, network):
    """Assert that a training killed at these steps, then resumed, ends like one that was never killed."""
    recipe = Recipe(
        3, 0.1, 7, weight_decay=0.01, schedule="cosine", augment="shift", checkpoint_every=every, seed=2, **how
    )
    expected = train(network(), samples(), recipe)
    with tempfile.TemporaryDirectory() as folder:
        for until in kills:
            watched = Watched(until)
            try:
                train(network(), samples(), recipe, loss=watched, directory=folder)
            except Killed:
                assert len(watched.batches) == until
        result = train(network(), samples(), recipe, directory=folder)
        assert same(expected.trajectory, result.trajectory)
        assert same(expected.trajectory, Trajectory.open(folder))
        assert torch.equal(expected.outputs(samples().batch()[0]), result.outputs(samples().batch()[0]))


@pytest.mark.parametrize("every", [None, 3])
def test_a_training_killed_while_it_writes_any_file_resumes_to_the_same_result(every, tmp_path, monkeypatch):
    recipe = Recipe(epochs=2, lr=0.1, batch_size=7, momentum=0.9, checkpoint_every=every)
    expected = train(fragile(), samples(), recipe).trajectory
    rename = os.replace
    for survived in itertools.count():
        left = iter(range(survived))

        def replace(source, destination, left=left):
            if next(left, None) is None:
                raise Killed
            rename(source, destination)

        folder = tmp_path / str(survived)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            try:
                train(fragile(), samples(), recipe, directory=folder)
                break
            except Killed:
                pass
        assert same(expected, train(fragile(), samples(), recipe, directory=folder).trajectory)
        assert same(expected, Trajectory.open(folder))
    assert survived >= 5


def test_a_finished_training_is_loaded_and_not_repeated(tmp_path):
    first = train(fragile(), samples(), PLAIN, directory=tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    watched = Watched()
    again = train(fragile(), samples(), PLAIN, loss=watched, directory=tmp_path)
    assert watched.batches == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert same(first.trajectory, again.trajectory)


def test_a_resumed_training_runs_only_the_missing_epochs(tmp_path):
    train_until_killed(10, linear(), samples(), PLAIN, directory=tmp_path)
    watched = Watched()
    train(linear(), samples(), PLAIN, loss=watched, directory=tmp_path)
    assert watched.batches == batches_of(PLAIN)[8:]


def test_a_folder_with_another_recipe_is_refused(tmp_path, refused):
    train_until_killed(10, linear(), samples(), PLAIN, directory=tmp_path)
    with refused("another recipe", str(tmp_path)):
        train(linear(), samples(), Recipe(epochs=3, lr=0.1, batch_size=7, seed=1), directory=tmp_path)


@pytest.mark.parametrize("without", [None, np.array([1])])
def test_a_folder_with_other_data_is_refused(tmp_path, refused, without):
    train_until_killed(10, linear(), samples(), PLAIN, directory=tmp_path)
    data = samples() if without is not None else samples().with_normalisation(torch.ones(1), torch.ones(1))
    with refused("another data", str(tmp_path)):
        train(linear(), data, PLAIN, directory=tmp_path, without=without)


def test_resuming_is_refused_if_different_positions_are_left_out(tmp_path, refused):
    twins = samples()[[0, 0, *range(1, COUNT)]]
    train_until_killed(10, linear(), twins, PLAIN, directory=tmp_path, without=np.array([0]))
    with refused("another data", str(tmp_path)):
        train(linear(), samples(), PLAIN, directory=tmp_path)


@pytest.mark.parametrize("network", [fragile(), linear(seed=9)])
def test_a_folder_with_another_network_is_refused(tmp_path, refused, network):
    train_until_killed(10, linear(), samples(), PLAIN, directory=tmp_path)
    with refused("another network", str(tmp_path)):
        train(network, samples(), PLAIN, directory=tmp_path)


@pytest.mark.parametrize("lost", range(4))
def test_a_missing_checkpoint_is_refused_or_trained_again(tmp_path, lost):
    expected = train(linear(), samples(), PLAIN, directory=tmp_path).trajectory[-1]
    (tmp_path / f"{lost:05d}.safetensors").unlink()
    try:
        again = train(linear(), samples(), PLAIN, directory=tmp_path).trajectory
    except ddm.InputError:
        return
    assert len(again) == 4
    assert same_tensors(expected, again[-1])


def test_a_damaged_progress_file_is_refused(tmp_path, refused):
    train_until_killed(10, linear(), samples(), PLAIN, directory=tmp_path)
    progress = tmp_path / "progress.safetensors"
    progress.write_bytes(progress.read_bytes()[:-20])
    with refused("progress.safetensors"):
        train(linear(), samples(), PLAIN, directory=tmp_path)


def test_a_new_training_deletes_the_checkpoints_of_an_unfinished_one(tmp_path):
    train_until_killed(4, linear(), samples(), Recipe(epochs=1, batch_size=5, checkpoint_every=1), directory=tmp_path)
    result = train(linear(), samples(), Recipe(epochs=1, batch_size=5), directory=tmp_path).trajectory
    assert same(result, Trajectory.open(tmp_path))


def test_a_folder_that_cannot_be_created_is_refused(tmp_path, refused):
    (tmp_path / "file").touch()
    with refused("cannot write"):
        train(linear(), samples(), PLAIN, directory=tmp_path / "file" / "run")


# --- refused trainings ---


def huge_loss(logits, labels):
    return 1e12 * F.cross_entropy(logits, labels)


@pytest.mark.parametrize("epochs", [1, 5])
def test_divergence_is_reported_even_in_the_last_step(epochs, refused):
    with refused("diverged", "lr"):
        train(linear(), samples(), Recipe(epochs=epochs, lr=1e29, batch_size=COUNT), loss=huge_loss)


def test_a_network_that_does_not_accept_the_inputs_is_refused(refused):
    with refused("(1, 6, 6)"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(7, COUNT)), samples(), PLAIN)
    with refused("(b, 3, 6, 6)", "1, 6, 6)"):
        train(ddm.networks.ConvNet((3, 6, 6), COUNT), samples(), PLAIN)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), f"{COUNT} classes"),
        (nn.Conv2d(1, COUNT, 1), "task 'tokens' or 'pixels'"),
    ],
)
def test_a_network_with_outputs_that_do_not_fit_the_classes_is_refused(network, words, refused):
    with refused(words):
        train(network, samples(), PLAIN)


@pytest.mark.parametrize(
    ("network", "count"), [(nn.Flatten(), 36), (linear().requires_grad_(False), COUNT)], ids=["none", "frozen"]
)
def test_a_network_without_parameters_to_train_is_refused(network, count, refused):
    with refused("parameters"):
        train(network, samples(count), PLAIN)


def test_a_batch_of_one_is_refused_if_the_network_has_batchnorm(refused):
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, COUNT))
    with refused("batch"):
        train(network, samples(), Recipe(epochs=1, batch_size=COUNT - 1))


def test_augmenting_inputs_that_are_not_images_is_refused(refused):
    vectors = Samples.from_arrays(torch.randn(COUNT, 36), torch.arange(COUNT))
    for kind in ("flip", "shift"):
        with refused("augment"):
            train(linear(), vectors, Recipe(epochs=1, augment=kind))


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"checkpoint_every": 0},
        {"checkpoint_every": -2},
        {"lr": 0.0},
        {"lr": -0.1},
        {"lr": math.nan},
        {"lr": math.inf},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1e-4},
        {"weight_decay": math.nan},
        {"schedule": "linear"},
        {"augment": "rotate"},
        {"warmup": -1},
        {"epochs": 3, "warmup": 3},
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"nesterov": True},
        {"nesterov": True, "optimizer": "rmsprop", "momentum": 0.9},
    ],
    ids=str,
)
def test_a_recipe_with_an_invalid_value_is_refused(bad, refused):
    with refused():
        Recipe(**bad)


@given(st.integers(1, 200), st.sampled_from(["constant", "cosine", "step"]), st.floats(1e-6, 1e3))
def test_learning_rates_start_at_lr_stay_positive_and_never_rise(total, schedule, lr):
    recipe = Recipe(lr=lr, schedule=schedule)
    rates = [recipe.lr_at(step, total) for step in range(total)]
    assert rates[0] == lr
    assert all(0 < after <= before for before, after in itertools.pairwise(rates))


@given(st.integers(1, 4), st.integers(1, 30), st.sampled_from(["constant", "cosine", "step"]))
def test_learning_rates_rise_evenly_in_the_warm_up_and_follow_the_schedule_after_it(warmup, steps, schedule):
    recipe = Recipe(epochs=6, lr=0.3, schedule=schedule, warmup=warmup)
    rates = [recipe.lr_at(step, 6 * steps) for step in range(6 * steps)]
    rising, after = rates[: warmup * steps], rates[warmup * steps :]
    assert rising == pytest.approx([0.3 * (step + 1) / len(rising) for step in range(len(rising))])
    plain = replace(recipe, warmup=0)
    assert after == pytest.approx([plain.lr_at(step, len(after)) for step in range(len(after))])


def test_nesterov_momentum_with_clipping_equals_torchs_in_a_plain_loop():
    recipe = Recipe(epochs=2, lr=0.2, batch_size=7, momentum=0.9, nesterov=True, clip_norm=0.5, checkpoint_every=1)
    network, clipped = linear(), 0
    optimizer = torch.optim.SGD(network.parameters(), 0.2, momentum=0.9, nesterov=True)
    trajectory = train(linear(), samples(), recipe).trajectory
    for step, rows in enumerate(batches_of(recipe), start=1):
        optimizer.zero_grad()
        x, y = samples().batch(rows)
        F.cross_entropy(network(x), y).backward()
        clipped += float(nn.utils.clip_grad_norm_(network.parameters(), 0.5)) > 0.5
        optimizer.step()
        assert same_tensors(trajectory[step], state_of(network))
    assert clipped


def test_the_recorder_sees_the_clipping_of_a_recipe():
    recipe = Recipe(epochs=2, lr=0.2, batch_size=24)
    clipped = train(linear(), samples(), replace(recipe, clip_norm=0.1)).trajectory
    assert clipped.cumulative_rates[-1] < train(linear(), samples(), recipe).trajectory.cumulative_rates[-1]


# --- the target ---


def test_batchnorm_statistics_are_stored_with_every_checkpoint():
    trajectory = train(fragile(), samples(), PLAIN).trajectory
    means = [state["1.running_mean"] for state in trajectory]
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(means))
    assert [int(state["1.num_batches_tracked"]) for state in trajectory] == [0, 4, 8, 12]


def test_batchnorm_and_dropout_are_frozen_in_the_targets_outputs():
    target = train(fragile(), samples(), PLAIN)
    x, _ = samples().batch()
    network = fragile()
    network.load_state_dict(target.trajectory[-1])
    with torch.no_grad():
        expected = network.eval()(x)
    before = state_of(target.network)
    assert torch.equal(target.outputs(x), expected)
    torch.testing.assert_close(target.outputs(x, batch_size=1), expected)
    assert same_tensors(before, state_of(target.network))


def test_outputs_at_a_checkpoint_use_its_own_batchnorm_statistics():
    target = train(fragile(), samples(), PLAIN)
    x, _ = samples().batch()
    network = fragile()
    network.load_state_dict(target.trajectory[1])
    theta, fixed = target.at(1)
    with torch.no_grad():
        assert torch.equal(target.flat(theta, fixed, x), network.eval()(x))


def test_the_network_of_a_target_is_the_trained_one():
    target = train(fragile(), samples(), PLAIN)
    x, y = samples().batch()
    assert torch.equal(target.network(x), target.outputs(x))
    assert target.accuracy(samples()) == pytest.approx(float((target.outputs(x).argmax(1) == y).double().mean()))


def test_frozen_parameters_are_not_part_of_theta():
    network = fragile()
    network[0].requires_grad_(False)
    target = train(network, samples(), PLAIN)
    assert len(target.theta) == sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert torch.equal(target.fixed["0.weight"], network[0].weight)
    assert all(torch.equal(state["0.weight"], network[0].weight) for state in target.trajectory)


class Tied(nn.Module):
    """A network whose two layers share one weight matrix."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(36, 36, bias=False), nn.Linear(36, 36)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(F.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize("on_disk", [False, True])
def test_tied_weights_are_trained_once_and_stay_tied(on_disk, tmp_path):
    network = Tied()
    target = train(network, samples(), PLAIN, directory=tmp_path if on_disk else None)
    expected = plain_loop(network, samples(), batches_of(PLAIN), [0.2] * 12, PLAIN)
    assert len(target.theta) == 36 * 36 + 36
    assert all(same_tensors(state, expected[4 * t]) for t, state in enumerate(target.trajectory))
    x, _ = samples().batch()
    weight, bias = target.theta[:-36].view(36, 36), target.theta[-36:]
    torch.testing.assert_close(target.outputs(x), F.relu(x.flatten(1) @ weight.T) @ weight.T + bias)


def test_the_fingerprint_differs_between_trainings_and_networks():
    prints = {
        train(linear(), samples(), PLAIN).fingerprint(),
        train(linear(seed=1), samples(), PLAIN).fingerprint(),
        train(linear(), samples(), Recipe(epochs=3, lr=0.1, batch_size=7)).fingerprint(),
        train(fragile(), samples(), PLAIN).fingerprint(),
    }
    assert len(prints) == 4
    assert train(linear(), samples(), PLAIN).fingerprint() in prints


def test_the_fingerprint_depends_on_buffers():
    one = train(fragile(), samples(), PLAIN)
    changed = Trajectory()
    for state, step, length in zip(one.trajectory, one.trajectory.steps, one.trajectory.cumulative_rates, strict=True):
        changed.append(state | {"1.running_mean": state["1.running_mean"] + 1}, step, length)
    assert Target(fragile(), changed).fingerprint() != one.fingerprint()


def test_the_fingerprint_is_the_same_after_saving_and_opening_the_trajectory(tmp_path):
    target = train(fragile(), samples(), PLAIN)
    target.trajectory.save(tmp_path)
    assert Target(fragile(seed=4), Trajectory.open(tmp_path)).fingerprint() == target.fingerprint()


# --- the user's own training loop ---


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_recorder_stores_the_state_of_the_network_at_each_snapshot(on_disk, tmp_path):
    network = fragile()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    recorder = Recorder(network, optimizer, directory=tmp_path if on_disk else None)
    snapshots = [copy.deepcopy(network.state_dict())]
    x, y = samples().batch()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
        recorder.snapshot()
        snapshots.append(copy.deepcopy(network.state_dict()))
    target = recorder.target()
    assert all(same_tensors(state, dict(kept)) for state, kept in zip(target.trajectory, snapshots, strict=True))
    assert target.trajectory.steps == [0, 1, 2, 3]
    assert target.trajectory.cumulative_rates == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert network.training
    with torch.no_grad():
        assert torch.equal(target.outputs(x), network.eval()(x))
    assert target.recipe is None


def test_without_an_optimizer_a_recorder_stores_no_learning_rates(tmp_path):
    recorder = Recorder(linear(), directory=tmp_path)
    recorder.snapshot()
    assert math.isnan(recorder.trajectory.cumulative_rates[-1])
    assert math.isnan(Trajectory.open(tmp_path).cumulative_rates[-1])


def test_training_further_does_not_change_the_recorded_target():
    network = linear()
    recorder = Recorder(network)
    recorder.snapshot()
    with pytest.warns(UserWarning, match="did not see the optimizer"):
        target = recorder.target()
    before = target.theta.clone(), target.fingerprint()
    with torch.no_grad():
        network[1].weight.zero_()
    assert torch.equal(target.theta, before[0])
    assert target.fingerprint() == before[1]
    assert torch.equal(target.network[1].weight, recorder.trajectory[0]["1.weight"])


def test_a_target_from_a_recorder_that_saw_no_training_is_refused(refused):
    with refused("did not change", "before training"):
        Recorder(linear()).target()


def test_a_recorder_replaces_the_checkpoints_in_its_folder(tmp_path):
    for count in (5, 2):
        recorder = Recorder(linear(), directory=tmp_path)
        for _ in range(count):
            recorder.snapshot()
    assert len(Trajectory.open(Path(tmp_path))) == 3
