"""Baselines without gradients, on cases small enough to work out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import ddm
from ddm.baselines import BASELINES, ScoreRequest
from ddm.groups.partition import from_groups

POINTS = [[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0], [4.0, 4.0], [0.0, 10.0]]
"""Group a: rows 0 and 1, class 0, centre (0, 1). Group b: rows 2 to 4, class 1, centre (4, 2). Group c: row 5."""


def target_of(network):
    trajectory = ddm.Trajectory()
    for t in range(2):
        trajectory.append(network.state_dict(), t, float(t))
    return ddm.Target(network, trajectory)


def identity_network():
    """A network whose logits and penultimate features are its inputs."""
    network = nn.Linear(2, 2, bias=False)
    network.weight.data.copy_(torch.eye(2))
    return network


@pytest.fixture
def score_request():
    train = ddm.Samples.from_arrays(torch.tensor(POINTS), torch.tensor([0, 0, 1, 1, 1, 0]), ["zero", "one"])
    test = ddm.Samples.from_arrays(
        torch.tensor([[0.0, 1.0], [4.0, 2.0], [4.0, 2.0]]), torch.tensor([0, 1, 0]), train.classes
    )
    groups = from_groups(train, list("aabbbc"))
    return ScoreRequest(target_of(identity_network()), train, groups, test, test[[0, 1]], seed=3)


def test_centroid_scores_are_negative_distances_to_group_centres(score_request):
    scores = BASELINES["centroid"](score_request)
    between = np.hypot(4, 1)
    np.testing.assert_allclose(
        scores.shift, -np.array([[0, between, between], [between, 0, 0], [9, distance_from_c(), distance_from_c()]])
    )


def distance_from_c():
    """The distance from (0, 10) to (4, 2)."""
    return np.hypot(4, 8)


def test_removing_a_near_group_raises_the_loss_of_its_own_class_and_lowers_the_loss_of_others(score_request):
    scores = BASELINES["centroid"](score_request)
    far = 1 / (1 + np.hypot(4, 1))
    np.testing.assert_allclose(scores.loss[0], [1, -far, far])
    np.testing.assert_allclose(scores.loss[1], [-far, 1, -1])
    np.testing.assert_allclose(scores.validation, scores.loss[:, :2].mean(1))


def test_predict_scores_compare_mean_probabilities_not_logits(score_request):
    def softmax(points):
        powers = np.exp(np.array(points))
        return powers / powers.sum(-1, keepdims=True)

    scores = BASELINES["predict"](score_request)
    means = [softmax(POINTS[:2]).mean(0), softmax(POINTS[2:5]).mean(0), softmax(POINTS[5])]
    squared = ((np.array(means)[:, None] - softmax([[0.0, 1.0], [4.0, 2.0], [4.0, 2.0]])[None]) ** 2).sum(2)
    np.testing.assert_allclose(scores.shift, -squared, rtol=1e-5)
    np.testing.assert_allclose(scores.loss, [[1, -1, 1], [-1, 1, -1], [1, -1, 1]] / (1 + squared), rtol=1e-5)


def test_size_scores_are_group_sizes_signed_by_class(score_request):
    scores = BASELINES["size"](score_request)
    np.testing.assert_array_equal(scores.shift, [[2] * 3, [3] * 3, [1] * 3])
    np.testing.assert_array_equal(scores.loss, [[2, -2, 2], [-3, 3, -3], [1, -1, 1]])
    np.testing.assert_array_equal(scores.validation, [0, 0, 0])


def test_a_group_of_several_classes_counts_as_its_majority_class(score_request):
    mixed = ScoreRequest(
        score_request.target,
        score_request.train,
        from_groups(score_request.train, list("aabbbb")),
        score_request.test,
        score_request.validation,
    )
    assert mixed.partition.parents is None
    np.testing.assert_array_equal(BASELINES["size"](mixed).loss, [[2, -2, 2], [-4, 4, -4]])


def test_random_scores_depend_only_on_the_seed(score_request):
    first, again = BASELINES["random"](score_request), BASELINES["random"](score_request)
    other = BASELINES["random"](
        ScoreRequest(
            score_request.target,
            score_request.train,
            score_request.partition,
            score_request.test,
            score_request.validation,
            seed=4,
        )
    )
    for field in ("shift", "loss", "validation"):
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


@pytest.mark.parametrize("name", ["random", "predict", "centroid", "size"])
def test_scores_are_finite_and_have_one_entry_per_group_and_sample(score_request, name):
    scores = BASELINES[name](score_request)
    assert scores.shift.shape == scores.loss.shape == (3, 3)
    assert scores.validation.shape == (3,)
    assert all(np.isfinite(part).all() for part in (scores.shift, scores.loss, scores.validation))
