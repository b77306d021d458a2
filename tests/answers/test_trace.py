"""Traces: the search by class and cluster, and verification by retraining."""

import copy

import numpy as np
import pytest
import torch

import ddm
from ddm.truth.retraining import Retraining


@pytest.fixture(scope="module")
def question(digits, datamodel):
    """The test sample that the target is least sure of."""
    x, _ = digits.test.batch()
    return digits.test[int(datamodel.target.outputs(x).softmax(1).amax(1).argmin())]


@pytest.mark.parametrize("objective", ["prediction", "correctness", "probabilities", "accuracy"])
def test_a_trace_goes_to_the_strongest_class_then_the_strongest_cluster_in_it(datamodel, digits, objective):
    question = digits.test[:7]
    found = datamodel.trace(question, objective)
    classes = datamodel.attribute(question, objective, level="class")
    assert found.class_name == classes.top(1)[0][0]
    clusters = datamodel.attribute(question, objective)
    inside = [name for name, _ in clusters.top(len(clusters)) if name.startswith(f"{found.class_name}/")]
    assert found.group == inside[0]
    assert found.effect == pytest.approx(dict(clusters.top(len(clusters)))[found.group], abs=1e-6)


def test_a_trace_needs_l_plus_c_fine_tunings_and_reports_their_number(datamodel, digits):
    found = datamodel.trace(digits.test[0])
    inside = np.sum(datamodel.partition.parents == datamodel.partition.parents[datamodel.partition.index(found.group)])
    assert found.models == 10 + inside
    assert found.full == len(datamodel.partition)
    assert f"{10 + inside} fine-tunings instead of {found.full}" in repr(found)
    assert found.to_dict()["fine_tunings"] == 10 + inside


def test_a_full_search_evaluates_every_group(datamodel, digits):
    found = datamodel.trace(digits.test[0], full=True)
    best = datamodel.attribute(digits.test[0]).top(1)[0]
    assert (found.group, found.effect) == best
    assert found.models == len(datamodel.partition)
    assert found.class_name is None


def test_groups_that_are_complete_classes_are_searched_only_once(target, digits):
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition="class", curvature=64, bank=8)
    assert datamodel.trace(digits.test[0]).models == 10


def test_groups_that_cut_across_classes_are_searched_in_full(target, digits):
    groups = np.arange(len(digits.train)) % 5
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition=groups, curvature=64, bank=8)
    found = datamodel.trace(digits.test[0])
    assert found.classes is None
    assert found.models == 5
    with pytest.raises(ddm.InputError, match="no class level"):
        datamodel.attribute(digits.test[0], level="class")


def test_the_strongest_group_for_stability_is_the_one_that_moves_the_prediction_most(datamodel, digits):
    stable = datamodel.trace(digits.test[0], "stability", full=True)
    moved = datamodel.trace(digits.test[0], "prediction", full=True)
    assert stable.group == moved.group
    assert stable.effect == stable.clusters.scores.min()


def test_verified_effects_are_those_of_retraining(datamodel, digits, question, tmp_path, capsys):
    datamodel = copy.copy(datamodel)  # it learns from these retrainings
    found = datamodel.trace(question, verify=2, directory=tmp_path, workers=1)
    assert "3 retrainings: 2 without one group each, and one with all groups" in capsys.readouterr().err
    candidates = [name for name, _ in found.clusters.top(2)]
    assert set(found.verified.names) == set(candidates)
    retraining = Retraining(datamodel.target, digits.train, tmp_path)
    base = datamodel.target.outputs(question[0][None]).softmax(1)
    for name, effect in found.verified.top(2):
        outputs = retraining.outputs([datamodel.partition.members(name)], 0, question[0][None])[0].softmax(1)
        assert effect == pytest.approx(float((outputs - base).square().sum()), rel=1e-4)
    assert (found.group, found.effect) == found.verified.top(1)[0]
    assert found.to_dict()["verified"]["groups"][0]["group"] == found.group
    assert "verified" in repr(found)


def test_verified_effects_compare_retrainings_with_each_other_not_with_the_target(datamodel, question):
    """A retraining may differ from the target for other reasons than a removal, such as its number of threads."""
    datamodel = copy.copy(datamodel)  # it learns from these retrainings
    target = datamodel.target

    def biased(rows, order):
        network = target.flat.module(target.theta, target.fixed)
        with torch.no_grad():
            list(network.parameters())[-1].add_(torch.arange(10.0) + (len(rows) > 0))
        return network

    found = datamodel.trace(question, "logits", verify=2, by=biased, workers=1)
    np.testing.assert_allclose(found.verified.matrix, 1.0, atol=1e-4)
