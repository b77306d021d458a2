"""Removals of all groups of a class, and removals that are beyond the reach of a datamodel."""

import warnings

import numpy as np
import pytest
import torch
from synset_alone import synset_alone

from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.reach import beyond_reach
from ddm.groups.partition import Partition


def groups_of(datamodel, label):
    return np.flatnonzero(datamodel.partition.parents == label)


def displacement(network, datamodel):
    return datamodel.target.flat.vector(network.state_dict()) - datamodel.target.theta


@pytest.fixture(scope="module", params=["responses", "synset"])
def datamodel(request, datamodel):
    """A datamodel that answers from kept responses, and one that answers from its synset."""
    return datamodel if request.param == "responses" else synset_alone(datamodel)


@pytest.fixture(scope="module")
def class_models(datamodel):
    """The models without each class."""
    if datamodel.responses is not None:
        return Models(datamodel.target, datamodel.responses.classes.rows())
    return Counterfactuals(datamodel.target, datamodel.class_synset)


@pytest.fixture(scope="module")
def classes(class_models):
    """The displacement of each class."""
    return class_models.directions(None)


def test_removing_all_groups_of_a_class_removes_the_class(datamodel, classes):
    found = displacement(datamodel.counterfactual(groups_of(datamodel, 3)), datamodel)
    torch.testing.assert_close(found, classes[3], rtol=1e-3, atol=1e-5)


def test_groups_of_other_classes_add_to_a_removed_class(datamodel, classes):
    other = int(groups_of(datamodel, 5)[0])
    both = displacement(datamodel.counterfactual([*groups_of(datamodel, 3), other]), datamodel)
    alone = displacement(datamodel.counterfactual(other), datamodel)
    torch.testing.assert_close(both, classes[3] + alone, rtol=1e-3, atol=1e-5)


def test_a_class_whose_groups_have_the_weight_0_is_removed_and_one_of_small_weight_is_not(datamodel, classes):
    groups = groups_of(datamodel, 3)
    removed, reduced = (
        displacement(datamodel.counterfactual(weights={int(group): weight for group in groups}), datamodel)
        for weight in (0, 0.01)
    )
    torch.testing.assert_close(removed, classes[3], rtol=1e-3, atol=1e-5)
    directions, own = datamodel.models.directions(torch.as_tensor(groups)), datamodel.synset.own[groups]
    kept = 0.99 * (1 - own) / (1 - 0.99 * own)
    torch.testing.assert_close(reduced, kept @ directions, rtol=1e-3, atol=1e-5)


def test_the_fast_path_removes_whole_classes_too(datamodel, class_models, digits):
    removed = np.vstack([datamodel.partition.parents == 3, np.eye(len(datamodel.partition))[0] == 1])
    x, _ = digits.test.batch(slice(0, 8))
    found = datamodel.models.outputs(removed, x, fast=True) - datamodel.target.outputs(x)
    wanted = class_models.changes(torch.tensor([3]), x)[0]
    torch.testing.assert_close(found[0], wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[1], datamodel.models.changes(torch.tensor([0]), x)[0], rtol=1e-3, atol=1e-4)


def test_a_removed_class_is_predicted_no_more(datamodel, digits):
    x, _ = digits.train.batch()
    with pytest.warns(UserWarning, match="2 whole classes"):
        network = datamodel.counterfactual([*groups_of(datamodel, 3), *groups_of(datamodel, 8)])
    assert not torch.isin(network(x).argmax(1), torch.tensor([3, 8])).any()


def test_half_of_the_classes_removed_is_warned_of(datamodel):
    half = [group for label in range(5) for group in groups_of(datamodel, label)]
    with pytest.warns(UserWarning, match="5 whole classes and .* of the training data: it is rough"):
        datamodel.counterfactual(half)
    assert "5 whole classes" in datamodel.beyond(half)


TEN = Partition(np.repeat(np.arange(20), 5), tuple(map(str, range(20))), np.arange(20) // 2, tuple("abcdefghij"))
"""Ten classes of two groups each, all of the same size."""


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        ([], None),
        ([0], None),
        ([0, 1], None),
        ([0, 2, 4, 6], None),
        ([0, 1, 2, 3], "2 whole classes"),
        ([0, 2, 4, 6, 8, 10], "30% of the training data"),
    ],
)
def test_several_whole_classes_and_much_data_are_beyond_reach(removed, words):
    found = beyond_reach(TEN, TEN.mask(removed)[None])
    assert (found is None) if words is None else (words in found)


def test_most_of_a_class_is_beyond_reach():
    partition = Partition(np.repeat(np.arange(20), [8, 2] * 10), TEN.names, TEN.parents, TEN.classes)
    assert "80% of class c" in beyond_reach(partition, partition.mask([4])[None])
    assert beyond_reach(partition, partition.mask([5])[None]) is None


def test_weights_count_by_how_much_they_differ_from_1():
    assert beyond_reach(TEN, np.full((1, 20), 0.1)) is None
    assert "50% of the training data" in beyond_reach(TEN, np.full((1, 20), -0.5))


def test_an_attribution_says_if_its_models_are_beyond_reach(datamodel, digits):
    single = datamodel.attribute(digits.test[0], level="class")
    assert single.beyond is None
    halves = datamodel.attribute(digits.test[0], level="class", design="random")
    assert "5 whole classes" in halves.beyond
    assert halves.beyond in repr(halves)
    assert halves.to_dict()["beyond"] == halves.beyond


def test_a_removal_within_reach_gives_no_warning(datamodel):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datamodel.counterfactual(groups_of(datamodel, 3))
    assert datamodel.beyond(groups_of(datamodel, 3)) is None
