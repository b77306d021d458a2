"""Responses and curvature of other tasks than classification, compared with the exact solution or with brute force.

Linear models are trained to convergence by gradient descent on all samples. What they would be without a group is
then known: by the normal equations for the squared error, by Newton's method for several labels.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.curvature.gradients import group_gradients
from ddm.curvature.rows import CurvatureRows, loss_vectors
from ddm.data.tasks import Task
from ddm.distil.blocks import Block
from ddm.distil.response.matching import ResponseMatching
from ddm.groups.partition import make_partition

N, D, K = 400, 4, 8
GROUPS = np.arange(N) % K
RATE, STEPS = 0.3, 300
EXACT = 0.02
"""Relative error of a response to the squared error. The damping 1/(RATE · STEPS) is 1.5 % of the least curvature."""

LABELS = 3
WEIGHTS = torch.tensor([[0.5, 0.0, 0.2], [-0.5, 0.3, 0.0], [0.0, 0.5, 0.4], [0.2, -0.3, 0.5]])
FIRST_ORDER = 0.1
"""Bound for a loss that is not quadratic: without an eighth of the data, logits move by about a tenth, and their
curvature p(1 − p) by a few percent. Random signs of 12,000 rows add a few percent."""


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, D, generator=generator) @ torch.diag(torch.tensor([1.0, 0.8, 1.2, 0.6]))


def converged(network, samples, loss, rate=RATE, task=None):
    """Gradient descent on all samples from zero weights, and its last steps, at convergence, as the trajectory."""
    (x, y), optimizer = samples.batch(), torch.optim.SGD(network.parameters(), rate)
    nn.init.zeros_(network.weight)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(network(x).view(y.shape), y).backward()
        optimizer.step()
    recipe = ddm.Recipe(epochs=STEPS, lr=rate, batch_size=N, checkpoint_every=STEPS // 2)
    return ddm.train(network, samples, recipe, loss=loss, task=task)


def responses(target, samples, rows=None):
    """Δ ``(K, P)`` of all groups."""
    work = ResponseMatching(target, samples, ddm.Settings(samples=N, curvature=rows, keep=0.0))
    partition = make_partition(target, samples, GROUPS, 1)
    return work.responses_of(partition, None, Block(list(range(K)), [])).double()


def assert_close(found, true, bound):
    """Every row of ``found (K, P)`` is near that of ``true``, relative to its length."""
    assert ((found - true).norm(dim=1) < bound * true.norm(dim=1)).all()


# --- regression ---


@pytest.fixture(scope="module")
def regression():
    x = inputs()
    noise = torch.randn(N, generator=torch.Generator().manual_seed(1))
    samples = ddm.Samples.from_arrays(x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.3 * noise, task="regression")
    return converged(nn.Linear(D, 1, bias=False), samples, F.mse_loss), samples


def least_squares(samples, kept):
    x, y = samples.batch()
    x, y = x.double()[kept], y.double()[kept]
    return torch.linalg.solve(x.T @ x, x.T @ y)


def test_the_response_of_a_regression_is_the_solution_of_the_normal_equations_without_the_group(regression):
    target, samples = regression
    torch.testing.assert_close(target.theta.double(), least_squares(samples, GROUPS >= 0), rtol=1e-4, atol=1e-5)
    true = torch.stack([least_squares(samples, k != GROUPS) for k in range(K)]) - target.theta.double()
    assert_close(responses(target, samples), true, EXACT)


def test_a_datamodel_of_a_regression_predicts_what_the_model_without_a_group_predicts(regression, monkeypatch):
    target, samples = regression
    monkeypatch.setattr("ddm.datamodel.check", lambda *_: [])  # a target that hardly moves is refused otherwise
    datamodel = ddm.DistilledDatamodel.fit(target, samples, partition=GROUPS, keep=0.0)
    questions = inputs(seed=2)[:5]
    whole = least_squares(samples, GROUPS >= 0)
    true = torch.stack([questions.double() @ (least_squares(samples, k != GROUPS) - whole) for k in range(K)])
    answers = [datamodel.attribute((question[None], None), "value").scores for question in questions]
    found = torch.as_tensor(np.stack(answers, 1)).double()
    assert float((found - true).norm() / true.norm()) < EXACT


# --- several labels ---


def newton(x, y, kept):
    """The exact minimiser ``(LABELS, D)`` of the mean binary cross-entropy over samples and labels."""
    x, y = x.double()[kept], y.double()[kept]
    weight = torch.zeros(LABELS, D, dtype=torch.float64)
    for _ in range(20):
        p = torch.sigmoid(x @ weight.T)
        for label in range(LABELS):
            bend = (x.T * (p[:, label] * (1 - p[:, label]))) @ x
            weight[label] -= torch.linalg.solve(bend, x.T @ (p[:, label] - y[:, label]))
    return weight.flatten()


def test_the_response_to_several_labels_is_to_first_order_the_exact_solution_without_the_group():
    x = inputs()
    generator = torch.Generator().manual_seed(3)
    y = torch.rand(N, LABELS, generator=generator) < torch.sigmoid(x @ WEIGHTS)
    samples = ddm.Samples.from_arrays(x, y.float(), task="multilabel")
    network = nn.Linear(D, LABELS, bias=False)
    target = converged(network, samples, F.binary_cross_entropy_with_logits, 20 * RATE, "multilabel")
    whole = newton(x, y, GROUPS >= 0)
    torch.testing.assert_close(target.theta.double(), whole, rtol=1e-2, atol=1e-3)
    true = torch.stack([newton(x, y, k != GROUPS) for k in range(K)]) - whole
    assert_close(responses(target, samples, rows=12_000), true, FIRST_ORDER)


# --- one logit ---


class TwoClasses(nn.Module):
    """The logit f of a network as the logits (0, f) of two classes."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        logit = self.network(x)
        return torch.cat([torch.zeros_like(logit), logit], 1)


def test_one_logit_has_the_responses_and_answers_of_its_two_class_form():
    x = inputs()
    y = (torch.rand(N, generator=torch.Generator().manual_seed(4)) < torch.sigmoid(2 * x[:, 0])).long()
    recipe = ddm.Recipe(epochs=10, lr=0.1, batch_size=50)
    torch.manual_seed(0)
    network = nn.Linear(D, 1)
    forms = []
    for task, model in (("binary", network), ("classification", TwoClasses(network))):
        samples = ddm.Samples.from_arrays(x, y, task=task)
        target = ddm.train(model, samples, recipe, task=task)
        datamodel = ddm.DistilledDatamodel.fit(target, samples, partition=GROUPS)
        forms.append((target.theta, responses(target, samples), datamodel.attribute(samples[:30], "logits").scores))
    for one, two in zip(*forms, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(two), rtol=1e-4, atol=1e-6)


# --- one class for each token ---

T, C = 3, 4
COUNTED = torch.tensor([[True, True, False], [True, True, True]])


def token_samples(count=2):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, T, D, generator=generator)
    y = torch.randint(0, C, (count, T), generator=generator)
    y[~COUNTED.repeat(count // 2, 1)] = -100
    return ddm.Samples.from_batch(x, y, [str(label) for label in range(C)], task="tokens")


def token_target(samples):
    torch.manual_seed(1)
    return ddm.train(nn.Linear(D, C), samples, ddm.Recipe(epochs=2, lr=0.1), task="tokens")


def token_loss(theta, target, x, y):
    """The mean over samples of the mean cross-entropy over the tokens that count, written out."""
    parts = target.flat.unflatten(theta)
    logits = x @ parts["weight"].T + parts["bias"]
    each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="none").view(y.shape)
    return (each.sum(1) / (y != -100).sum(1)).mean()


def test_the_covariance_of_curvature_vectors_of_tokens_is_the_hessian_of_the_loss():
    task, draws = Task("tokens"), 100_000
    samples = token_samples()
    outputs = task.shaped(torch.randn(2, T, C, generator=torch.Generator().manual_seed(6)))
    for row in range(2):
        y = samples.labels[[row]]
        true = torch.func.hessian(lambda f, y=y: task.losses(f[None], y)[0])(outputs[row])
        vectors = loss_vectors(
            task, outputs[[row]].expand(draws, -1), y.expand(draws, -1), torch.Generator().manual_seed(row)
        )
        found = vectors.T @ vectors / draws
        assert float((found - true).norm() / true.norm()) < 0.02
        assert not found[~COUNTED[row].repeat_interleave(C)].any()  # tokens that do not count have no curvature


def test_curvature_rows_of_tokens_estimate_the_gauss_newton_matrix_of_the_loss():
    samples = token_samples()
    target = token_target(samples)
    x, y = samples.batch()
    # the model is linear in θ, so its Gauss–Newton matrix is the Hessian of the loss
    true = torch.func.hessian(lambda theta: token_loss(theta, target, x, y))(target.theta)
    rows = torch.cat(list(CurvatureRows(target, samples, [2], torch.ones(1), 20_000).batches()))
    assert float((rows.T @ rows - true).norm() / true.norm()) < 0.05


def test_the_pull_of_tokens_is_the_gradient_of_the_mean_loss_of_the_samples():
    samples = token_samples(count=8)
    target = token_target(samples)
    members = [np.array([0, 3, 4]), np.array([1])]
    found = group_gradients(target, samples, members, [-1])[:, 0]
    for rows, gradient in zip(members, found, strict=True):
        true = torch.func.grad(token_loss)(target.theta, target, *samples.batch(rows))
        torch.testing.assert_close(gradient, true.to(gradient))


# --- a regression from its first step on ---


def test_a_regression_forgets_the_large_gradients_of_its_start(monkeypatch):
    """From zero weights the first gradients are huge, and at the end nothing is left of them."""
    x, noise = inputs(), torch.randn(N, generator=torch.Generator().manual_seed(1))
    samples = ddm.Samples.from_arrays(x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.3 * noise, task="regression")
    network = nn.Linear(D, 1, bias=False)
    nn.init.zeros_(network.weight)
    recipe = ddm.Recipe(epochs=40, lr=RATE, batch_size=N)
    target = ddm.train(network, samples, recipe, loss=F.mse_loss)
    true = torch.stack([least_squares(samples, k != GROUPS) for k in range(K)]) - target.theta.double()
    error = (responses(target, samples) - true).norm() / true.norm()
    monkeypatch.setattr("ddm.distil.response.solve._SEGMENTS", 1)
    pooled = (responses(target, samples) - true).norm() / true.norm()
    assert error < 0.3 < pooled
