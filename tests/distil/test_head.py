"""Datamodels that displace some parameters only, such as those of the last layer."""

import copy

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import ddm
from ddm.truth.retraining import NO_ROWS, Retraining

QUICK = {"partition": "class", "curvature": 128, "checkpoints": 3, "synset": False}


def net(frozen):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    network[1].requires_grad_(not frozen)
    return network


@pytest.fixture(scope="module")
def states(digits):
    """A trajectory of a head that was trained on frozen features."""
    torch.manual_seed(0)
    trained = ddm.train(net(True), digits.train, ddm.Recipe(epochs=4, lr=0.5, batch_size=32))
    trajectory = ddm.Trajectory()
    for t in range(len(trained.trajectory)):
        trajectory.append(trained.trajectory[t], trained.trajectory.steps[t], trained.trajectory.cumulative_rates[t])
    return trajectory


def test_the_head_of_a_network_on_frozen_features_is_all_that_moves(states, digits):
    fits = [
        ddm.DistilledDatamodel.fit(ddm.Target(net(True), states), digits.train, **QUICK),
        ddm.DistilledDatamodel.fit(ddm.Target(net(False), states), digits.train, parameters="head", **QUICK),
        ddm.DistilledDatamodel.fit(ddm.Target(net(False), states), digits.train, parameters=["3.*"], **QUICK),
    ]
    assert [dm.target.flat.size for dm in fits] == [130] * 3
    frozen, *others = (dm.attribute(digits.test[:30], "loss").matrix for dm in fits)
    assert np.abs(frozen).max() > 0
    for found in others:
        assert np.array_equal(found, frozen)


def test_all_layers_before_the_head_stay_as_they_are(target, digits):
    dm = ddm.DistilledDatamodel.fit(target, digits.train, parameters="head", **QUICK)
    before, after = target.network.state_dict(), dm.counterfactual("3").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"classifier.weight", "classifier.bias"}
    assert set(dm.target.flat.shapes) == moved


def test_retraining_trains_every_layer_and_corrects_the_answers(target, digits, tmp_path):
    dm = ddm.DistilledDatamodel.fit(target, digits.train, parameters="head", **QUICK)
    x, _ = digits.test.batch(range(5))
    whole, head = (Retraining(each, digits.train, tmp_path, engine="serial") for each in (target, dm.target))
    rows = dm.partition.members("3")
    expected = whole.outputs([NO_ROWS, rows], 0, x)
    assert head.count_missing([NO_ROWS, rows]) == 0  # the same retrainings
    assert torch.equal(head.outputs([NO_ROWS, rows], 0, x), expected)
    dm.refine(0, directory=tmp_path, engine="serial")
    measured = dm.models.outputs(np.eye(10, dtype=bool)[[3]], x)[0]
    assert (measured - target.outputs(x) - (expected[1] - expected[0])).norm() < 1e-3 * (
        expected[1] - expected[0]
    ).norm()


def test_a_saved_run_moves_the_same_parameters_and_retrains_all(target, digits, tmp_path):
    dm = ddm.DistilledDatamodel.fit(target, digits.train, parameters="head", **QUICK)
    dm.save(tmp_path / "run")
    again = ddm.load(tmp_path / "run")
    assert again.target.flat.shapes == dm.target.flat.shapes
    assert again.target.trained == target.trained
    found = [each.attribute(digits.test[:9], "loss").matrix for each in (dm, again)]
    assert np.array_equal(*found)


def test_a_killed_fit_of_the_head_does_not_resume_one_of_all_parameters(target, digits, tmp_path):
    ddm.DistilledDatamodel.fit(target, digits.train, directory=tmp_path, **QUICK)
    with refused("another target"):
        ddm.DistilledDatamodel.fit(target, digits.train, directory=tmp_path, parameters="head", **QUICK)


def test_parameters_that_there_are_not_are_refused(target, digits, states):
    with refused("no trained parameter is named layer9.*", "'head'"):
        target.displacing("layer9.*", digits.train.batch([0])[0])
    frozen = ddm.Target(net(True), states)
    with refused("no trained parameter"):
        frozen.displacing("1.*", digits.train.batch([0])[0])
    network = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    convolution = ddm.train(network, digits.train, ddm.Recipe(epochs=1, lr=0.1))
    with refused("no linear layer"):
        convolution.displacing("head", digits.train.batch([0])[0])
    assert copy.deepcopy(target.displacing("head", digits.train.batch([0])[0])).trained == target.trained
