import copy
from dataclasses import replace

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import ddm
import ddm.groups.partition
from ddm.compute import engine
from ddm.curvature.gradients import group_gradients, loss_gradient
from ddm.curvature.step_weights import StepWeights
from ddm.distil import Settings, distil, paper
from ddm.distil.blocks import plan_blocks
from ddm.distil.checkpoints import draw_pairs, real_checkpoints
from ddm.distil.gradient.algorithm import SyntheticSamples, match_gradients
from ddm.distil.gradient.distances import DISTANCES
from ddm.distil.gradient.matching import GradientMatching
from ddm.distil.gradient.start import initial_samples
from ddm.distil.response.pull import _Pull, _Task
from ddm.distil.synset_gradients import synset_gradients
from ddm.errors import InputError
from ddm.groups.partition import Partition, classwise, sequential

STEPS = 6


@pytest.fixture(scope="module")
def partition(digits):
    return sequential(digits.train, 2)


def distilled(target, digits, partition, **changes):
    settings = Settings(**{"matching": "reverse", "steps": STEPS, **changes})
    found = distil(target, digits.train, partition, settings)
    return found.synset, found.class_synset


def test_a_group_gradient_is_the_gradient_of_its_mean_loss(target, digits, partition):
    rows = partition.rows(3)
    found = group_gradients(target, digits.train, [rows], [1])[0, 0]
    network = target.flat.module(*target.at(1))
    x, y = digits.train.batch(rows)
    F.cross_entropy(network(x), y).backward()
    torch.testing.assert_close(found, torch.cat([p.grad.flatten() for p in network.parameters()]))


def test_a_gradient_does_not_depend_on_the_batch_size(target, digits):
    theta, fixed = target.at(0)
    whole, parts = (loss_gradient(target, theta, fixed, *digits.train.batch(), size) for size in (10_000, 7))
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


def test_the_layer_cosine_distance_is_summed_over_output_units_as_in_dataset_condensation(target):
    one, other = torch.randn(2, 3, target.flat.size)
    found = DISTANCES["layer-cosine"](target.flat)(one, other)
    for row in range(3):
        total = 0.0
        layers = zip(target.flat.unflatten(one[row]).values(), target.flat.unflatten(other[row]).values(), strict=True)
        for mine, yours in layers:
            if mine.dim() > 1:
                for unit_a, unit_b in zip(mine.flatten(1), yours.flatten(1), strict=True):
                    total += 1 - float(unit_a @ unit_b / (unit_a.norm() * unit_b.norm()))
        assert found[row].item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_is_zero_for_equal_gradients_and_positive_for_opposite_ones(target, name):
    gradients = torch.randn(3, target.flat.size)
    distance = DISTANCES[name](target.flat)
    torch.testing.assert_close(distance(gradients, gradients), torch.zeros(3), atol=1e-3, rtol=0)
    assert (distance(gradients, -gradients) > 1).all()


@pytest.mark.parametrize("hard", [False, True])
def test_synset_gradients_are_the_same_in_a_loop_and_vectorised(target, digits, hard):
    images = digits.train.batch(slice(0, 6))[0].view(3, 2, 1, 8, 8).requires_grad_()
    targets = torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    results = []
    for vectorised in (True, False):
        gradients = synset_gradients(
            target, target.theta, target.fixed, images, targets, hard=hard, vectorised=vectorised
        )
        results.append((gradients, torch.autograd.grad(gradients.square().sum(), images)[0]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(one.detach().abs().max()))


def test_matching_is_the_same_in_a_loop_and_vectorised(target, digits, partition, monkeypatch):
    one, _ = distilled(target, digits, partition, augment="shift")
    monkeypatch.setattr("ddm.distil.synset_gradients._FEW_PARAMETERS", 0)
    other, _ = distilled(target, digits, partition, augment="shift")
    torch.testing.assert_close(one.images, other.images, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.targets, other.targets, rtol=1e-3, atol=1e-3)


def test_the_synset_of_a_group_does_not_depend_on_the_order_of_the_groups(target, digits, partition):
    turned = np.arange(len(partition))[::-1].copy()
    reversed_order = Partition(
        turned[partition.groups], partition.names[::-1], partition.parents[::-1], partition.classes
    )
    one, _ = distilled(target, digits, partition)
    other, _ = distilled(target, digits, reversed_order)
    torch.testing.assert_close(one.images, other.images.flip(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.step_sizes, other.step_sizes.flip(0), rtol=1e-2, atol=1e-6)


def test_the_synset_does_not_depend_on_how_groups_are_blocked(target, digits, partition):
    bytes_per_group = target.flat.size * 4 * (len(target.trajectory) + 8)
    whole = distilled(target, digits, partition)
    few = distilled(target, digits, partition, memory=7 * bytes_per_group / 2**30)
    single = distilled(target, digits, partition, memory=bytes_per_group / 2**30 / 10)
    for other in (few, single):
        for one, two in zip(whole, other, strict=True):
            assert one.names == two.names
            torch.testing.assert_close(one.images, two.images, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(one.targets, two.targets, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("matching", ["reverse", "forward"])
def test_blocks_distilled_in_processes_are_bit_for_bit_those_distilled_serially(target, digits, partition, matching):
    here, there = (
        distil(target, digits.train, partition, Settings(matching=matching, steps=STEPS), engine=engine)
        for engine in ("serial", "processes")
    )
    for one, other in ((here.synset, there.synset), (here.class_synset, there.class_synset)):
        assert one.names == other.names
        for part in ("images", "targets", "step_sizes", "alignment"):
            assert torch.equal(getattr(one, part), getattr(other, part))


@pytest.mark.parametrize(("fitting", "cores", "processes"), [(3, 16, 3), (1, 16, 1), (3, 2, 2)])
def test_the_blocks_of_all_processes_together_fit_the_memory(
    target, digits, partition, fitting, cores, processes, monkeypatch
):
    asked = []

    def run_tasks(work, tasks, *, workers, **how):
        asked.append(workers)
        return map(work, tasks)

    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    monkeypatch.setattr(engine, "run_tasks", run_tasks)
    work = GradientMatching(target, digits.train, Settings(matching="reverse", steps=1))
    blocks = plan_blocks(partition, work.bytes_per_group, 1.0, work.max_block_groups)
    largest = max(block.size for block in blocks)
    work.settings = replace(work.settings, memory=(fitting + 0.5) * largest * work.bytes_per_group / 2**30)
    made = dict(work.distil_blocks(partition, partition.by_class(), list(enumerate(blocks)), lambda amount: None))
    assert asked == [processes]
    assert set(made) == set(range(len(blocks)))


@pytest.fixture
def elsewhere(target):
    """The target with θ_τ and its buffers on another device."""
    other = copy.copy(target)
    other.theta = target.theta.to("meta")
    other.fixed = {name: tensor.to("meta") for name, tensor in target.fixed.items()}
    return other


def test_pulls_do_not_use_tensors_of_the_target_on_another_device(target, elsewhere, digits):
    some = _Task(3, ((digits.train[:8], 0.5), (digits.train[8:20], 0.25)))
    weights = StepWeights(target, [0, 2], digits.train)
    (_, here), (first, there) = (_Pull(one, [0, 2], weights, [0, 0])(some) for one in (target, elsewhere))
    assert first == 3
    assert here.abs().max() > 0
    assert torch.equal(here, there)


def test_a_block_does_not_use_tensors_of_the_target_on_another_device(target, elsewhere, digits, partition):
    made = []
    for one in (target, elsewhere):
        work = GradientMatching(target, digits.train, Settings(matching="reverse", steps=2))
        work.target = one
        blocks = list(enumerate(plan_blocks(partition, work.bytes_per_group, 1.0, work.max_block_groups)))[:1]
        made.append(next(iter(work.distil_blocks(partition, partition.by_class(), blocks, lambda amount: None)))[1])
    for (_, here), (_, there) in zip(*(block.synsets for block in made), strict=True):
        assert torch.equal(here.images, there.images)
        assert torch.equal(here.step_sizes, there.step_sizes)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.integers(1, 40), st.booleans())
    )
)
def test_blocks_hold_every_group_and_class_once_and_fit_the_memory(case):
    sizes, room, nested = case
    parents = np.repeat(np.arange(len(sizes)), sizes)
    count = len(parents)
    partition = Partition(
        np.arange(count), tuple(map(str, range(count))), parents if nested else None, tuple(map(str, range(len(sizes))))
    )
    blocks = plan_blocks(partition, 2**20, room / 1024)
    assert sorted(group for block in blocks for group in block.clusters) == list(range(count))
    assert sorted(level for block in blocks for level in block.classes) == (list(range(len(sizes))) if nested else [])
    for block in blocks:
        assert len(block.clusters) + len(block.classes) <= room
        if block.clusters:
            for level in block.classes:
                assert set(np.flatnonzero(parents == level)) <= set(block.clusters)


def test_class_synsets_are_those_of_a_classwise_partition(target, digits, partition):
    _, classes = distilled(target, digits, partition)
    alone, _ = distilled(target, digits, classwise(digits.train))
    assert classes.names == alone.names
    torch.testing.assert_close(classes.images, alone.images, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(classes.step_sizes, alone.step_sizes, rtol=0.05, atol=1e-4)


def test_if_each_class_is_one_group_both_levels_share_one_synset(target, digits):
    turned = {label: f"group of {9 - label}" for label in range(10)}
    partition = ddm.groups.partition.from_groups(digits.train, [turned[int(label)] for label in digits.train.labels])
    groups, classes = distilled(target, digits, partition)
    assert groups.names == tuple(f"group of {k}" for k in range(10))
    assert classes.names == digits.classes
    assert torch.equal(groups.images, classes.images.flip(0))
    assert torch.equal(groups.step_sizes, classes.step_sizes.flip(0))


def test_matching_brings_the_gradients_closer(target, digits, partition):
    start_only, _ = distilled(target, digits, partition, steps=0, init="noise")
    matched, _ = distilled(target, digits, partition, steps=60, init="noise", distance="cosine")
    assert matched.alignment.mean() > start_only.alignment.mean() + 0.1


QUICK = {("reverse", "cosine"), ("forward", "layer-cosine")}


@pytest.mark.parametrize(
    ("matching", "distance"),
    [
        pytest.param(matching, distance, marks=[] if (matching, distance) in QUICK else pytest.mark.slow)
        for matching in ("reverse", "forward")
        for distance in DISTANCES
    ],
)
def test_a_reverse_synset_points_away_from_its_group_and_a_forward_synset_towards_it(
    target, digits, partition, matching, distance
):
    synset, _ = distilled(target, digits, partition, matching=matching, distance=distance, steps=40, lr=0.02)
    gradients = synset_gradients(target, target.theta, target.fixed, synset.images, synset.targets, hard=False).detach()
    wanted = group_gradients(
        target, digits.train, [partition.rows(k) for k in range(len(partition))], range(len(target.trajectory))
    ).mean(1)
    agreement = F.cosine_similarity(gradients, wanted, dim=1).mean()
    assert agreement < -0.2 if matching == "reverse" else agreement > 0.2
    assert (synset.step_sizes.sign() == (1 if matching == "reverse" else -1)).float().mean() > 0.7


def test_soft_targets_sum_to_one_and_hard_ones_stay_one_hot(target, digits, partition):
    soft, _ = distilled(target, digits, partition)
    hard, _ = distilled(target, digits, partition, labels="hard", ipc=3)
    torch.testing.assert_close(soft.targets.sum(-1), torch.ones(len(partition), 1))
    assert (soft.targets < 0).any()
    assert torch.equal(hard.targets.sort(-1).values[..., -1], torch.ones(len(partition), 3))
    assert torch.equal(hard.targets.argmax(-1), torch.as_tensor(partition.parents)[:, None].expand(-1, 3))
    assert hard.images.shape[1] == 3


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_a_group_whose_gradient_is_nan_stops_and_leaves_the_others_intact(target, digits, labels):
    settings = Settings(matching="reverse", steps=4, labels=labels)
    pairs = draw_pairs(settings, len(target.trajectory) - 1)
    names = ["a", "b", "c"]
    members = [np.arange(5), np.arange(5, 10), np.arange(10, 15)]
    starts = [
        initial_samples(target, digits.train, rows, name, settings) for rows, name in zip(members, names, strict=True)
    ]
    initial = SyntheticSamples(torch.stack([x for x, _ in starts]), torch.stack([q for _, q in starts]))
    wanted = dict(enumerate(group_gradients(target, digits.train, members, range(len(target.trajectory))).unbind(1)))
    clean = match_gradients(target, wanted, pairs, initial, names, settings)
    poisoned = {t: gradients.clone() for t, gradients in wanted.items()}
    poisoned[pairs[2][0]][1] = torch.nan
    first = min(step for step, pair in enumerate(pairs) if pair[0] == pairs[2][0])
    found = match_gradients(target, poisoned, pairs, initial, names, settings)
    assert list(found.stopped) == [1]
    assert f"group b stopped at step {first + 1} of 4" in found.stopped[1]
    assert torch.isfinite(found.images).all()
    for row in (0, 2):
        assert torch.equal(found.images[row], clean.images[row])
        assert torch.equal(found.targets[row], clean.targets[row])


def test_exploding_images_stop_with_advice_and_a_stopped_group_cannot_be_removed(target, digits, partition):
    with pytest.raises(InputError, match=r"none of the 20 groups could be distilled.*lower the matching lr"):
        ddm.DistilledDatamodel.fit(target, digits.train, partition=partition, matching="reverse", steps=2, lr=1e6)
    whole, classes = distilled(target, digits, partition)
    name = partition.names[3]
    stopped = replace(whole, stopped={name: "it stopped."})
    data = digits.train.fingerprint()
    broken = ddm.DistilledDatamodel(target, partition, stopped, classes, Settings(), data)
    with pytest.raises(InputError, match=f"{name} cannot be removed"):
        broken.counterfactual([0, name])
    assert broken.counterfactual([0]) is not None


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_pairs_lie_on_the_trajectory_and_keep_their_distance(tau, offset, seed):
    for t, later in draw_pairs(Settings(matching="reverse", offset=offset, seed=seed, steps=30), tau):
        assert 0 <= t <= later <= tau
        assert later - t == min(offset, max(1, tau // 2))
    for t, mirrored in draw_pairs(Settings(matching="reverse", pairing="mirror", seed=seed, steps=30), tau):
        assert 0 <= t <= tau
        assert t + mirrored == tau
    for t, same in draw_pairs(Settings(matching="forward", seed=seed, steps=30), tau):
        assert 0 <= t == same <= tau


@given(st.integers(1, 100), st.integers(2, 40))
def test_real_checkpoints_span_the_trajectory_and_pairs_use_no_others(tau, count):
    settings = Settings(checkpoints=count, steps=30)
    taken = real_checkpoints(settings, tau)
    assert len(set(taken)) == len(taken) == min(count, tau + 1)
    assert (taken[0], taken[-1]) == (0, tau)
    assert {t for t, _ in draw_pairs(settings, tau)} <= set(taken)


def test_a_folder_with_blocks_of_another_distillation_is_refused(target, digits, partition, tmp_path):
    distil(target, digits.train, partition, Settings(matching="reverse", steps=1), tmp_path)
    for other in (Settings(matching="reverse", steps=1, ipc=2), Settings(matching="reverse", steps=1, seed=1)):
        with pytest.raises(InputError, match="another settings"):
            distil(target, digits.train, partition, other, tmp_path)
    with pytest.raises(InputError, match="another partition"):
        distil(target, digits.train, sequential(digits.train, 3), Settings(matching="reverse", steps=1), tmp_path)


def test_a_target_is_not_distilled_with_data_it_was_not_trained_on(target, digits):
    with pytest.raises(InputError, match="other samples"):
        ddm.DistilledDatamodel.fit(target, digits.test, clusters=1)


def test_a_loss_without_soft_targets_is_refused_unless_labels_are_hard(target, digits):
    only_labels = ddm.Target(target.network, target.trajectory, lambda f, y: F.nll_loss(f.log_softmax(1), y))
    with pytest.raises(InputError, match="labels='hard'"):
        ddm.DistilledDatamodel.fit(only_labels, digits.train, clusters=1, matching="reverse", steps=1)
    with pytest.warns(UserWarning, match="point the wrong way"):
        ddm.DistilledDatamodel.fit(only_labels, digits.train, clusters=1, matching="reverse", steps=1, labels="hard")


class Odd(nn.Module):
    """A network with attention and with code that depends on its data."""

    def __init__(self):
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        if x.max() > 1e6:
            x = x / 2
        return self.head(self.attention(x[:, 0]).flatten(1))


def test_networks_that_vmap_cannot_run_are_distilled_in_a_loop(digits):
    torch.manual_seed(0)
    target = ddm.train(Odd(), digits.train, ddm.Recipe(epochs=2, lr=0.01))
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, clusters=1, matching="reverse", steps=2)
    assert np.isfinite(datamodel.attribute(digits.test[0]).scores).all()


def test_synsets_from_noise_with_augmentation_are_finite_for_every_optimizer(target, digits, partition):
    for changes in ({"optimizer": "sgd", "augment": "shift"}, {"init": "noise", "augment": "flip-shift"}):
        synset, _ = distilled(target, digits, partition, **changes)
        assert torch.isfinite(synset.images).all()
        assert torch.isfinite(synset.step_sizes).all()


def test_groups_that_cut_across_classes_have_no_class_level(target, digits):
    groups = np.arange(len(digits.train)) % 4
    synset, classes = distilled(target, digits, ddm.groups.partition.from_groups(digits.train, groups), ipc=2)
    assert len(synset) == 4
    assert classes is None


def test_the_paper_preset_has_the_settings_of_the_papers_table():
    recipe, settings = paper("mnist", "convnet")
    assert (recipe.epochs, recipe.lr) == (30, 0.001)
    assert (settings.lr, settings.steps, settings.offset, settings.distance) == (0.1, 50, 4, "layer-cosine")
    assert (settings.labels, settings.ipc, settings.init, settings.matching) == ("hard", 1, "real", "reverse")
    recipe, settings = paper("tiny-imagenet", "simplevit")
    assert (recipe.lr, settings.lr, settings.distance) == (0.01, 0.005, "mse")


@pytest.mark.parametrize(
    "changes",
    [
        {"distance": "manhattan"},
        {"pairing": "x"},
        {"ipc": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"steps": -1},
        {"labels": "soft-ish"},
        {"step_size": 0.0},
        {"augment": "x"},
        {"memory": 0.0},
    ],
)
def test_invalid_settings_are_refused(changes):
    with pytest.raises(InputError):
        Settings(**changes)


def test_an_unknown_matching_is_refused(target, digits, partition):
    with pytest.raises(InputError, match="reverse, forward"):
        distilled(target, digits, partition, matching="sideways")
