"""Scores of single samples: those of a linear model are exact, and positive means that the sample helps."""

import numpy as np
import pytest
import torch
from torch import nn

import ddm
from ddm.answers import sample_scores

N, D = 300, 4


@pytest.fixture(scope="module")
def least_squares():
    """Linear regression at its optimum, with the exact solution without each sample."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator)
    y = x @ torch.randn(D, generator=generator) + 0.5 * torch.randn(N, generator=generator)
    samples = ddm.Samples.from_arrays(x, y, task="regression")
    x, y = x.double(), y.double()
    whole = torch.linalg.solve(x.T @ x, x.T @ y)
    without = torch.stack([_solve(x, y, torch.arange(N) != row) for row in range(N)])
    network = nn.Linear(D, 1, bias=False).double()
    network.weight.data.copy_(whole[None])
    trajectory = ddm.Trajectory()
    for t in range(3):
        trajectory.append(network.state_dict(), t, 1e5 * t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddm.datamodel.check", lambda *_: [])  # a target that never moves is refused otherwise
        datamodel = ddm.DistilledDatamodel.fit(
            ddm.Target(network, trajectory, nn.functional.mse_loss),
            samples,
            partition=np.arange(N) % 10,
            curvature=3_000,
            damping=1.0,
        )
    return datamodel, samples, x, y, whole, without


def _solve(x, y, kept):
    return torch.linalg.solve(x[kept].T @ x[kept], x[kept].T @ y[kept])


def test_scores_of_a_linear_model_are_the_exact_influence_of_each_sample(least_squares):
    datamodel, samples, x, _, whole, without = least_squares
    found = datamodel.scores(samples[:20], "value")
    assert found.shape == (N, 20)
    leverage = torch.einsum("nd,de,ne->n", x, torch.linalg.inv(x.T @ x), x)
    exact = ((without - whole) @ x[:20].T) * (1 - leverage)[:, None]  # to first order in the sample's weight
    np.testing.assert_allclose(found, exact.numpy(), rtol=0.02, atol=0.02 * exact.abs().max().item())


def test_a_positive_score_means_that_the_loss_rises_without_the_sample(least_squares):
    datamodel, samples, x, y, whole, without = least_squares
    found = datamodel.scores(samples[:20])
    rise = (x[:20] @ without.T - y[:20, None]).square().T - (x[:20] @ whole - y[:20]).square()
    strong = rise.abs() > rise.abs().quantile(0.5)
    assert (np.sign(found) == np.sign(rise.numpy()))[strong.numpy()].mean() > 0.99
    assert np.corrcoef(found.ravel(), rise.numpy().ravel())[0, 1] > 0.99


def test_scores_are_the_responses_of_single_samples(datamodel, digits):
    question = digits.test[:3]
    found = datamodel.scores(question, "logits", output="3")
    responses, target, rows = datamodel._responses(None), datamodel.target, [0, 7, 50]
    single = responses.curvature.solve(responses.pulls([np.array([row]) for row in rows]))
    for column in range(3):
        x = question.batch([column])[0]
        logit = torch.func.grad(lambda theta, x=x: target.flat(theta, target.fixed, x)[0, 3])(target.theta)
        np.testing.assert_allclose(found[rows, column], (single @ logit).numpy(), rtol=0.01, atol=1e-6)


def test_test_samples_in_parts_have_the_same_scores(datamodel, digits, monkeypatch):
    whole = datamodel.scores(digits.test[:4])
    monkeypatch.setattr(sample_scores, "_FLOATS", 2 * datamodel.target.flat.size)
    np.testing.assert_allclose(datamodel.scores(digits.test[:4]), whole, rtol=1e-4, atol=1e-6)


def test_objectives_that_give_no_scores_are_refused(datamodel, digits, refused):
    with refused("accuracy", "loss"):
        datamodel.scores(digits.test[:2], "accuracy")
    with refused("prediction", "extreme"):
        datamodel.scores(digits.test[:2], "prediction")
    with refused("no value", "zebra"):
        datamodel.scores(digits.test[:2], "logits", output="zebra")
