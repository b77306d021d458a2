"""The baselines without gradients, on cases whose answer can be worked out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import ddm
from ddm.baselines import BASELINES, Question
from ddm.partition import given

POINTS = [[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0], [4.0, 4.0], [0.0, 10.0]]
"""Group a: the first two, class 0, centre (0, 1); b: the next three, class 1, centre (4, 2); c: the last."""


def target_of(network):
    recorder = ddm.Recorder(network)
    recorder.snapshot(length=1.0)
    return recorder.target()


def identity():
    """Logits are the inputs, and so are the penultimate features."""
    network = nn.Linear(2, 2, bias=False)
    network.weight.data.copy_(torch.eye(2))
    return network


@pytest.fixture
def question():
    train = ddm.Samples.make(torch.tensor(POINTS), torch.tensor([0, 0, 1, 1, 1, 0]), ["zero", "one"])
    test = ddm.Samples.make(torch.tensor([[0.0, 1.0], [4.0, 2.0], [4.0, 2.0]]), torch.tensor([0, 1, 0]), train.classes)
    return Question(target_of(identity()), train, given(train, list("aabbbc")), test, test[[0, 1]], seed=3)


def test_the_nearest_centroid_shifts_a_prediction_most(question):
    scores = BASELINES["centroid"](question)
    across = np.hypot(4, 1)
    np.testing.assert_allclose(
        scores.shift, -np.array([[0, across, across], [across, 0, 0], [9, across_c(), across_c()]])
    )


def across_c():
    """From (0, 10) to (4, 2)."""
    return np.hypot(4, 8)


def test_a_near_group_raises_the_loss_of_its_own_class_and_lowers_that_of_another(question):
    scores = BASELINES["centroid"](question)
    far = 1 / (1 + np.hypot(4, 1))
    np.testing.assert_allclose(scores.loss[0], [1, -far, far])
    np.testing.assert_allclose(scores.loss[1], [-far, 1, -1])
    np.testing.assert_allclose(scores.validation, scores.loss[:, :2].mean(1))


def test_predictions_are_compared_as_probabilities(question):
    def softmax(points):
        powers = np.exp(np.array(points))
        return powers / powers.sum(-1, keepdims=True)

    scores = BASELINES["predict"](question)
    means = [softmax(POINTS[:2]).mean(0), softmax(POINTS[2:5]).mean(0), softmax(POINTS[5])]
    squared = ((np.array(means)[:, None] - softmax([[0.0, 1.0], [4.0, 2.0], [4.0, 2.0]])[None]) ** 2).sum(2)
    np.testing.assert_allclose(scores.shift, -squared, rtol=1e-5)
    np.testing.assert_allclose(scores.loss, [[1, -1, 1], [-1, 1, -1], [1, -1, 1]] / (1 + squared), rtol=1e-5)


def test_size_counts_samples_with_the_sign_of_the_class(question):
    scores = BASELINES["size"](question)
    np.testing.assert_array_equal(scores.shift, [[2] * 3, [3] * 3, [1] * 3])
    np.testing.assert_array_equal(scores.loss, [[2, -2, 2], [-3, 3, -3], [1, -1, 1]])
    np.testing.assert_array_equal(scores.validation, [0, 0, 0])


def test_a_group_that_cuts_across_classes_counts_as_the_class_of_most_of_its_samples(question):
    mixed = Question(
        question.target, question.train, given(question.train, list("aabbbb")), question.test, question.validation
    )
    assert mixed.partition.parents is None
    np.testing.assert_array_equal(BASELINES["size"](mixed).loss, [[2, -2, 2], [-4, 4, -4]])


def test_random_scores_depend_on_the_seed_alone(question):
    first, again = BASELINES["random"](question), BASELINES["random"](question)
    other = BASELINES["random"](
        Question(question.target, question.train, question.partition, question.test, question.validation, seed=4)
    )
    for field in ("shift", "loss", "validation"):
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


@pytest.mark.parametrize("name", ["random", "predict", "centroid", "size"])
def test_every_score_has_its_shape_and_is_finite(question, name):
    scores = BASELINES[name](question)
    assert scores.shift.shape == scores.loss.shape == (3, 3)
    assert scores.validation.shape == (3,)
    assert all(np.isfinite(part).all() for part in (scores.shift, scores.loss, scores.validation))
