from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import ddm
from ddm.counterfactual import displaced as module
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.displaced import multiples
from ddm.curvature import gradients
from ddm.distil.synset import Synset
from ddm.errors import InputError


def by_hand(datamodel, removed):
    """The fine-tuning written as a plain training loop."""
    synset = datamodel.synset
    network = datamodel.target.flat.module(datamodel.target.theta, datamodel.target.fixed)
    for _ in range(synset.steps):
        network.zero_grad()
        for group in removed:
            targets = synset.targets[group].argmax(-1) if synset.hard else synset.targets[group]
            images = synset.images[0 if synset.shared else group]
            loss = nn.functional.cross_entropy(network(images), targets)
            (loss * synset.step_sizes[group] / synset.steps).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= parameter.grad
    return network


@pytest.mark.parametrize(
    "changes",
    [
        {"matching": "response", "clusters": 2, "keep": 0},
        {},
        {"finetune_steps": 4},
        {"labels": "hard", "ipc": 2},
        {"step_size": 0.01, "finetune_steps": 3},
        {"matching": "forward"},
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_a_counterfactual_is_the_target_fine_tuned_on_the_synset_of_the_removed_groups(
    target, digits, changes, large, monkeypatch
):
    if large:  # take the path of networks that are too large to be vectorised
        monkeypatch.setattr("ddm.distil.synset_gradients._FEW_PARAMETERS", 0)
        monkeypatch.setattr(module, "_FEW_PARAMETERS", 0)
    settings = {"matching": "reverse", "clusters": 1, "steps": 3, **changes}
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, **settings)
    x, _ = digits.test.batch()
    for removed in ([2], [0, 5, 7]):
        found = datamodel.counterfactual(removed)(x).detach()
        torch.testing.assert_close(found, by_hand(datamodel, removed)(x).detach(), rtol=1e-3, atol=1e-4)
        design = datamodel.partition.mask(removed)[None]
        torch.testing.assert_close(datamodel.outputs(x[:2], design)[0], found[:2], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(found, target.outputs(x), atol=1e-5)


def test_removing_nothing_gives_the_target(datamodel, digits):
    x, _ = digits.test.batch()
    torch.testing.assert_close(datamodel.counterfactual([])(x), datamodel.target.outputs(x))


def test_the_outputs_of_a_design_agree_with_those_of_its_single_models(synset_datamodel, digits, monkeypatch):
    datamodel = synset_datamodel
    removed = np.random.default_rng(0).random((5, len(datamodel.partition))) < 0.3
    x, _ = digits.test.batch(slice(0, 9))
    single = torch.stack([datamodel.counterfactual(np.flatnonzero(row))(x) for row in removed])
    torch.testing.assert_close(datamodel.outputs(x, removed), single, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(datamodel.outputs(x[:1], removed), single[:, :1], rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(module, "BUDGET", 4 * datamodel.target.flat.size * 2)  # two models at a time, no cache
    small = Counterfactuals(datamodel.target, datamodel.synset)
    torch.testing.assert_close(small.outputs(removed, x), single, rtol=1e-3, atol=1e-4)


@pytest.fixture
def held(monkeypatch):
    """Number of directions that each call computes."""
    made, found = Counterfactuals._steps, []
    monkeypatch.setattr(
        Counterfactuals, "_steps", lambda self, some, theta: found.append(len(some)) or made(self, some, theta)
    )
    return found


@pytest.mark.parametrize("changes", [{}, {"matching": "reverse", "steps": 2}], ids=["shared", "own"])
@pytest.mark.parametrize("fast", [False, True])
def test_no_more_directions_are_held_than_fit_the_budget(target, digits, changes, fast, held, monkeypatch):
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, clusters=3, **{"curvature": 512, "bank": 40} | changes)
    groups = len(datamodel.partition)
    removed = np.vstack([np.random.default_rng(0).random((5, groups)) < 0.5, np.eye(groups, dtype=bool)])
    x, _ = digits.test.batch(slice(0, 6))
    whole = Counterfactuals(target, datamodel.synset).outputs(removed, x, fast=fast)
    held.clear()
    monkeypatch.setattr(module, "BUDGET", 4 * target.flat.size * 4)
    monkeypatch.setattr(gradients, "_TOGETHER", 10 * target.flat.size * 2)  # two inputs at a time
    found = Counterfactuals(target, datamodel.synset).outputs(removed, x, fast=fast)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6 * float(whole.abs().max()))
    assert max(held) == 4
    if fast:
        assert sum(held) == groups  # each is computed once, whatever the number of inputs


def test_several_steps_hold_no_more_directions_than_fit_the_budget(target, digits, held, monkeypatch):
    datamodel = ddm.DistilledDatamodel.fit(
        target, digits.train, clusters=2, matching="reverse", steps=2, finetune_steps=3
    )
    removed = np.random.default_rng(0).random((2, len(datamodel.partition))) < 0.5
    whole = datamodel._clusters.parameters(removed)
    held.clear()
    monkeypatch.setattr(module, "BUDGET", 4 * target.flat.size * 3)
    torch.testing.assert_close(datamodel._clusters.parameters(removed), whole, rtol=1e-4, atol=1e-6)
    assert max(held) == 3


@pytest.mark.parametrize("steps", [1, 3])
def test_removing_nothing_gives_the_target_under_a_tiny_memory_budget(target, digits, steps, monkeypatch):
    datamodel = ddm.DistilledDatamodel.fit(
        target, digits.train, clusters=1, matching="reverse", steps=2, finetune_steps=steps
    )
    monkeypatch.setattr(module, "BUDGET", 4 * target.flat.size)
    x, _ = digits.test.batch(slice(0, 3))
    torch.testing.assert_close(datamodel.counterfactual([])(x), target.outputs(x))


def test_one_step_effects_on_parameters_add_up_over_groups(datamodel):
    removed = np.eye(len(datamodel.partition), dtype=bool)[[0, 1, 3]]  # not a complete class
    alone = datamodel._clusters.parameters(removed) - datamodel.target.theta
    union = datamodel.partition.mask([0, 1, 3])[None]
    together = datamodel._clusters.parameters(union)[0] - datamodel.target.theta
    torch.testing.assert_close(together, alone.sum(0), rtol=1e-4, atol=1e-6)


def test_a_counterfactual_can_be_saved_loaded_trained_and_called(datamodel, digits, tmp_path):
    network = datamodel.counterfactual(["3/0", 4])
    ddm.networks.save(network, tmp_path / "model.safetensors")
    x, y = digits.test.batch()
    torch.testing.assert_close(ddm.networks.load(tmp_path / "model.safetensors").eval()(x), network(x))
    torch.save(network.state_dict(), tmp_path / "state.pt")
    again = ddm.networks.from_spec(network.spec)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(again.eval()(x), network(x))
    nn.functional.cross_entropy(network(x), y).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_groups_are_given_by_number_or_name_and_unknown_groups_are_refused(datamodel, digits):
    x, _ = digits.test.batch(slice(0, 3))
    index = datamodel.partition.index("3/1")
    torch.testing.assert_close(datamodel.counterfactual("3/1")(x), datamodel.counterfactual(index)(x))
    for group in ("3/99", 1000, -1, "", "³"):
        with pytest.raises(InputError, match="there is no group"):
            datamodel.counterfactual(group)


def test_removing_every_group_is_refused(datamodel, refused):
    with refused("every group", "keep at least one"):
        datamodel.counterfactual(datamodel.partition.names)
    datamodel.counterfactual(datamodel.partition.names[1:])


def test_a_design_that_removes_every_group_at_once_is_refused(datamodel, digits, refused):
    design = 1 - np.eye(len(datamodel.partition), dtype=int)
    design[3] = 0
    with refused("row 3", "every group"):
        datamodel.attribute(digits.test[0], design=design)


def test_a_design_of_the_wrong_width_is_refused(datamodel, digits):
    with pytest.raises(InputError, match="do not fit"):
        datamodel.outputs(digits.test.batch()[0], np.zeros((2, 3), dtype=bool))


class Own(nn.Module):
    """A user's network with BatchNorm, dropout and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Conv2d(1, 1, 1).requires_grad_(False)
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 10))

    def forward(self, x):
        return self.head(self.body(self.frozen(x)))


def test_the_users_own_network_with_batchnorm_keeps_its_statistics_and_frozen_layers(digits):
    torch.manual_seed(0)
    recorder = ddm.Recorder(model := Own())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x, y = digits.train.batch()
    for _ in range(3):
        model.train()
        for rows in torch.arange(len(x)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        recorder.snapshot()
    datamodel = ddm.DistilledDatamodel.fit(recorder.target(), digits.train, clusters=2, steps=5)
    without = datamodel.counterfactual([0, 1])
    assert type(without) is Own
    assert not without.training
    for name, value in without.state_dict().items():
        same = torch.equal(value, model.state_dict()[name])
        assert same == ("running" in name or "num_batches" in name or "frozen" in name), name
    found = datamodel.attribute(digits.test[0], "probabilities")
    assert np.isfinite(found.matrix).all()
    # Probabilities add up to one, so effects on them add up to zero. Active dropout would break this.
    np.testing.assert_allclose(found.matrix.sum(1), 0, atol=1e-6)


# --- weights ---


def displacement(datamodel, **changes):
    """How far the parameters of a counterfactual are from the target's ``(P,)``."""
    network = datamodel.counterfactual(**changes)
    return datamodel.target.flat.vector(network.state_dict()) - datamodel.target.theta


def test_a_group_that_keeps_some_weight_resists_the_change_with_its_own_curvature(datamodel):
    one, other = displacement(datamodel, remove="3/1"), displacement(datamodel, remove="1/2")
    own = dict(zip(datamodel.partition.names, datamodel.synset.own.tolist(), strict=True))

    def multiple(weight, share):
        return (1 - weight) * (1 - share) / (1 - (1 - weight) * share)

    for weight, further in ((0.5, 2), (0.9, 0.25), (3, 0)):
        found = displacement(datamodel, weights={"3/1": weight, "1/2": further})
        wanted = multiple(weight, own["3/1"]) * one + multiple(further, own["1/2"]) * other
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_doubling_a_group_moves_the_network_less_than_removing_it(datamodel):
    for group in datamodel.partition.names[::7]:
        whole, double = displacement(datamodel, remove=group), displacement(datamodel, weights={group: 2})
        assert double.norm() < whole.norm()


def test_masks_give_the_same_models_whatever_the_own_shares_of_the_groups_are(datamodel):
    shares = torch.rand(len(datamodel.partition), generator=torch.Generator().manual_seed(0))
    mask = np.random.default_rng(0).random((20, len(datamodel.partition))) < 0.3
    for removed in (mask, mask.astype(int), mask.astype(np.float32), mask.astype(float)):
        assert torch.equal(multiples(torch.as_tensor(removed), shares).bool(), torch.as_tensor(mask))
        models = [Counterfactuals(datamodel.target, replace(datamodel.synset, own=own)) for own in (None, shares)]
        one, other = (model.parameters(removed) for model in models)
        assert torch.equal(one, other)


def test_a_synset_of_an_older_file_has_no_own_shares_and_moves_in_proportion_to_one_minus_the_weight(
    datamodel, tmp_path
):
    replace(datamodel.synset, own=None).save(tmp_path / "old.safetensors")
    old = Synset.load(tmp_path / "old.safetensors")
    assert old.own is None
    models = Counterfactuals(datamodel.target, old)
    removed = np.zeros((1, len(old)))
    removed[0, 3] = 1 - 2.0
    wanted = datamodel.target.theta - models.directions(torch.tensor([3]))
    torch.testing.assert_close(models.parameters(removed), wanted)


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_file_with_impossible_own_shares_is_refused(datamodel, tmp_path, value):
    own = torch.full((len(datamodel.synset),), value)
    replace(datamodel.synset, own=own).save(tmp_path / "synset.safetensors")
    with pytest.raises(InputError, match="own needs one value for each group"):
        Synset.load(tmp_path / "synset.safetensors")


def test_weight_0_removes_a_group_and_weight_1_leaves_it(datamodel, digits):
    x, _ = digits.test.batch()
    names = datamodel.partition.names
    for removed in (names[4:5], names[2:9]):
        weights = dict.fromkeys(names, 1) | dict.fromkeys(removed, 0)
        assert torch.equal(datamodel.counterfactual(weights=weights)(x), datamodel.counterfactual(removed)(x))
    for weights in ({}, dict.fromkeys(names, 1.0)):
        torch.testing.assert_close(datamodel.counterfactual(weights=weights)(x), datamodel.target.outputs(x))


def test_the_outputs_of_fractional_perturbations_agree_with_single_networks_and_to_first_order_with_fast_ones(
    datamodel, digits
):
    x, _ = digits.test.batch(slice(0, 6))
    weights = np.random.default_rng(0).uniform(0.95, 1.05, (3, len(datamodel.partition)))
    single = torch.stack([datamodel.counterfactual(weights=dict(enumerate(row.tolist())))(x) for row in weights])
    torch.testing.assert_close(datamodel.outputs(x, 1 - weights), single, rtol=1e-3, atol=1e-4)
    fast, before = datamodel._clusters.outputs(1 - weights, x, fast=True), datamodel.target.outputs(x)
    assert (fast - single).norm() < 0.1 * (single - before).norm()


def test_fine_tuning_in_several_steps_weighs_the_step_of_each_group(target, digits):
    datamodel = ddm.DistilledDatamodel.fit(
        target, digits.train, clusters=1, matching="reverse", steps=2, finetune_steps=3
    )
    whole, small = displacement(datamodel, remove=[2, 5]), displacement(datamodel, weights={2: 0.99, 5: 1.02})
    assert torch.equal(displacement(datamodel, weights={2: 0, 5: 0}), whole)
    two, five = datamodel._clusters._steps(torch.tensor([2, 5]), target.theta)
    assert (small - (0.01 * two - 0.02 * five)).norm() < 0.05 * small.norm()


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"3/99": 2}, "there is no group"),
        ({"3/1": -0.1}, "at least 0"),
        ({"3/1": float("nan")}, "finite"),
        ({"3/1": float("inf")}, "finite"),
        ({"3/1": "half"}, "finite number"),
        ({"3/1": 2, 10: 2}, "twice"),
        ([0.5, 2], "map groups to numbers"),
    ],
)
def test_bad_weights_are_refused(datamodel, refused, weights, words):
    assert datamodel.partition.index("3/1") == 10
    with refused(words):
        datamodel.counterfactual(weights=weights)


def test_weights_that_leave_no_training_data_are_refused(datamodel, refused):
    with refused("every group", "keep at least one"):
        datamodel.counterfactual(weights=dict.fromkeys(datamodel.partition.names, 0))


def test_removal_and_weights_together_or_neither_are_refused(datamodel, refused):
    for changes in ({}, {"remove": [], "weights": {}}):
        with refused("either"):
            datamodel.counterfactual(**changes)


def test_perturbations_that_are_not_finite_are_refused(datamodel, digits, refused):
    with refused("1 − weight"):
        datamodel.outputs(digits.test.batch()[0], np.full((1, len(datamodel.partition)), np.nan))


def test_a_warning_of_large_weights_does_not_speak_of_removal(datamodel):
    with pytest.warns(UserWarning, match=r"reweights .* retrain with these weights"):
        datamodel.counterfactual(weights=dict.fromkeys(datamodel.partition.names[:20], 2))
