"""Shares of samples: they add up, agree with brute force, and point at the samples that cause the effect."""

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


@pytest.mark.parametrize("objective", ["prediction", "loss", "correctness", "probabilities", "logits", "stability"])
def test_shares_add_up_to_the_effect_of_the_group(datamodel, question, objective):
    found = datamodel.shares(question, 4, objective)
    effect = datamodel.attribute(question, objective)
    assert found.values.sum() == pytest.approx(found.effect, rel=1e-9)
    assert found.effect == pytest.approx(effect.scores[4], rel=1e-4)
    assert sorted(found.rows) == sorted(datamodel.partition.rows(4))
    assert (np.diff(found.values * np.sign(found.effect)) <= 1e-12).all()


def test_by_default_shares_are_those_of_the_traced_group(datamodel, question):
    assert datamodel.shares(question).group == datamodel.trace(question).group


def test_shares_can_explain_a_chosen_class(datamodel, question):
    found = datamodel.shares(question, 4, "probabilities", output="7")
    assert found.values.sum() == pytest.approx(
        datamodel.attribute(question, "probabilities").on("7").scores[4], rel=1e-4
    )


def test_shares_of_a_logit_are_the_responses_of_single_samples(datamodel, digits, question):
    """A logit is linear in the step, so each share is the change that the sample's own response makes."""
    found = datamodel.shares(question, 4, "logits", output="3")
    responses = datamodel._responses(None)
    members = [np.array([row]) for row in found.rows]
    single = responses.curvature.solve(responses.pulls(members))
    target = datamodel.target
    logit = torch.func.grad(lambda theta: target.flat(theta, target.fixed, question[0][None])[0, 3])(target.theta)
    wanted = (single @ logit).numpy()
    wanted = wanted * found.effect / wanted.sum()
    np.testing.assert_allclose(found.values, wanted, rtol=0.02, atol=0.01 * np.abs(wanted).max())


@pytest.mark.slow
def test_retraining_without_the_samples_with_the_largest_shares_changes_more_than_without_the_smallest():
    data = ddm.datasets.load("digits", limit=600)
    network = ddm.networks.ConvNet(data.train.shape, len(data.classes), width=8, depth=2)
    target = ddm.train(network, data.train, ddm.Recipe(epochs=12, lr=0.1, batch_size=32))
    datamodel = ddm.DistilledDatamodel.fit(target, data.train, clusters=3, curvature=2048, bank=60)
    x, y = data.test.batch()
    unsure = target.outputs(x).softmax(1).amax(1).argsort()[:12]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        retraining = Retraining(target, data.train, folder)
        wins = []
        for index in unsure.tolist():
            question = x[index : index + 1], y[index : index + 1]
            group = datamodel.trace(question, "loss").group
            shares = datamodel.shares(question, group, "loss")
            half = len(shares) // 2
            base = torch.nn.functional.cross_entropy(target.outputs(question[0]), question[1])
            losses = torch.nn.functional.cross_entropy(
                retraining.outputs([shares.rows[:half], shares.rows[-half:]], 0, question[0])[:, 0],
                question[1].expand(2),
                reduction="none",
            )
            top, bottom = ((losses - base) * np.sign(shares.effect)).tolist()
            wins.append(top > bottom)
    assert np.mean(wins) >= 0.75


def test_objectives_without_a_gradient_and_missing_training_sets_are_refused(
    refused, datamodel, digits, question, tmp_path
):
    with refused("accuracy", "loss"):
        datamodel.shares(question, 4, "accuracy")
    datamodel.save(tmp_path)
    loaded = ddm.load(tmp_path)
    with refused("training set", "train="):
        loaded.shares(question, 4)
    with refused("another training set"):
        loaded.shares(question, 4, train=digits.test)
    found = loaded.shares(question, 4, train=digits.train)
    whole = datamodel.shares(question, 4).values
    np.testing.assert_allclose(found.values, whole, rtol=1e-3, atol=1e-3 * np.abs(whole).max())


def test_shares_have_a_table_a_plot_and_html(datamodel, digits, question, tmp_path):
    found = datamodel.shares(question, 4)
    found.plot(digits.train, 3).savefig(tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000
    assert len(found.to_dataframe()) == len(found)
    assert "shares" in repr(found)
    assert [one["sample"] for one in found.to_dict()["samples"]] == found.rows.tolist()
