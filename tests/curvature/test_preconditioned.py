"""The solve with a weight for each parameter and checkpoint agrees with dense matrices, and with descent itself."""

import numpy as np
import pytest
import torch
from torch import nn

import ddm
from ddm.curvature import pooled_curvature
from ddm.curvature.preconditioned import PreconditionedCurvature
from ddm.curvature.sampled import SampledCurvature
from ddm.curvature.step_weights import StepWeights
from ddm.training.steps import Steps, TensorSteps

N, D, L = 60, 6, 3
CHECKPOINTS = [0, 1, 2]


def squared(outputs, labels):
    return (outputs - nn.functional.one_hot(labels, L)).square().sum(1) / 2


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    return ddm.Samples.from_arrays(torch.randn(N, D, generator=generator), torch.arange(N) % L)


def linear(seed=0):
    network = nn.Linear(D, L, bias=False)
    network.weight.data.copy_(torch.randn(L, D, generator=torch.Generator().manual_seed(seed)))
    return network


def adam_target(decay=0.0):
    """A target whose second moments differ between parameters and between checkpoints."""
    generator = torch.Generator().manual_seed(1)
    trajectory = ddm.Trajectory()
    trajectory.append(linear(0).state_dict(), 0, 0.0)
    for t in (1, 2):
        steps = TensorSteps(0.5 * t, coupled=decay * 0.5 * t, decoupled=0.1 * t, epsilon=5 * 1e-8, count=5)
        moments = {"weight": torch.rand(L, D, generator=generator) ** 2}
        seen = Steps({"weight": steps}, scaled=True, optimizer="Adam")
        trajectory.append(linear(t).state_dict(), 5 * t, 0.5 * t * (t + 1) / 2, seen, moments)
    return ddm.Target(linear(2), trajectory, squared)


def weights_by_hand(target):
    """W_t ``(3, P)`` by the formula."""
    before, after = (target.trajectory.moments(t)["weight"].flatten() for t in (1, 2))
    moments = [before, (before + after) / 2, after]
    divisors = [moment.sqrt() + 1e-8 for moment in moments]
    divisors = [divisor + divisor.median() for divisor in divisors]
    rates = [0.25, 0.75, 0.5]  # 0.5 before and 1.0 after the middle checkpoint, each half on either side
    return torch.stack([rate / divisor for rate, divisor in zip(rates, divisors, strict=True)])


def test_the_weights_are_learning_rates_divided_by_the_roots_of_second_moments_and_their_median(samples):
    target = adam_target()
    weights = StepWeights(target, CHECKPOINTS, samples)
    expected = weights_by_hand(target)
    assert weights.uniform is None
    for position in range(3):
        torch.testing.assert_close(weights.at(target, position), expected[position])
    torch.testing.assert_close(weights.total(target), expected.sum(0))


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_damping_has_coupled_decay_divided_like_the_gradient_and_decoupled_decay_as_it_is(decay, samples):
    target = adam_target(decay)
    total = weights_by_hand(target).sum(0)
    damping = StepWeights(target, CHECKPOINTS, samples).damping(target)
    torch.testing.assert_close(damping, (1 + decay * total + 0.1 + 0.2) / total)


@pytest.mark.parametrize("rows", [12, 9000])
@pytest.mark.parametrize("memory", [2.0, 1e-9])
def test_the_solve_and_its_transpose_agree_with_the_dense_matrix(rows, memory, samples):
    target = adam_target()
    weights = StepWeights(target, CHECKPOINTS, samples)
    damping = weights.damping(target)
    curvature = pooled_curvature(target, samples, CHECKPOINTS, weights, damping, rows=rows, memory=memory)
    assert isinstance(curvature, PreconditionedCurvature)
    shares = weights_by_hand(target) / weights_by_hand(target).sum(0)
    found = torch.cat(list(curvature.rows.batches()))
    owners = torch.arange(len(found)) // curvature.rows.per_checkpoint
    dense = torch.diag(damping) + (shares[owners] * found).T @ found
    right = torch.randn(4, L * D, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(curvature.solve(right), torch.linalg.solve(dense, right.T).T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        curvature.solve(right, transposed=True), torch.linalg.solve(dense.T, right.T).T, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("rows", [12, 9000])
def test_a_solve_without_a_group_agrees_with_the_dense_matrix_of_the_other_rows(rows, samples):
    target = adam_target()
    weights = StepWeights(target, CHECKPOINTS, samples)
    damping = weights.damping(target)
    curvature = pooled_curvature(target, samples, CHECKPOINTS, weights, damping, rows=rows)
    shares = weights_by_hand(target) / weights_by_hand(target).sum(0)
    made = torch.cat(list(curvature.rows.batches()))
    owners = torch.arange(len(made)) // curvature.rows.per_checkpoint
    right, members = (
        torch.randn(2, L * D, generator=torch.Generator().manual_seed(2)),
        [np.arange(9), np.arange(20, 50)],
    )
    found, _ = curvature.solve_without(right, members)
    for b, direction, group in zip(right, found, members, strict=True):
        others = torch.as_tensor(~np.isin(curvature.rows.positions.numpy(), group))
        dense = torch.diag(damping) + (shares[owners] * made)[others].T @ made[others]
        torch.testing.assert_close(direction, torch.linalg.solve(dense, b), rtol=0.02, atol=0.02)


def test_the_quadratic_form_agrees_with_the_exact_curvature(samples):
    """For the squared loss the curvature is the second moment of the inputs, the same for every output."""
    target = adam_target()
    weights = StepWeights(target, CHECKPOINTS, samples)
    damping = weights.damping(target)
    curvature = pooled_curvature(target, samples, CHECKPOINTS, weights, damping, rows=30)
    curvature._fresh.per_checkpoint = 6000
    x = samples.batch()[0]
    gram = torch.block_diag(*[x.T @ x / N] * L)
    shares = weights_by_hand(target) / weights_by_hand(target).sum(0)
    directions = torch.randn(3, L * D, generator=torch.Generator().manual_seed(3))
    expected = (damping * directions.square()).sum(1)
    expected = expected + torch.stack([((shares.sum(0) * d) @ gram @ d) for d in directions])
    torch.testing.assert_close(curvature.unseen_quadratic(directions), expected, rtol=0.1, atol=0.0)


def test_equal_rates_give_the_symmetric_solve(samples):
    trajectory = ddm.Trajectory()
    for t in range(3):
        seen = Steps({"weight": TensorSteps(0.5, count=5)}, optimizer="SGD") if t else None
        trajectory.append(linear(t).state_dict(), 5 * t, 0.5 * t, seen)
    target = ddm.Target(linear(2), trajectory, squared)
    weights = StepWeights(target, CHECKPOINTS, samples)
    assert weights.uniform.tolist() == pytest.approx([0.25, 0.5, 0.25])
    torch.testing.assert_close(weights.damping(target), torch.ones(L * D))
    curvature = pooled_curvature(target, samples, CHECKPOINTS, weights, weights.damping(target))
    assert type(curvature) is SampledCurvature


def preconditioned_descent(x, y, rates, steps):
    """Where gradient descent with a learning rate for each input ends, on the mean squared loss from zero."""
    theta = torch.zeros(L, D, dtype=torch.float64)
    for _ in range(steps):
        theta = theta - rates * ((x @ theta.T - y).T @ x / len(x))
    return theta


@pytest.mark.parametrize(("length", "steps"), [(1e-4, 20), (0.05, 20_000)], ids=["short", "long"])
def test_the_response_is_what_preconditioned_descent_does_on_a_quadratic(length, steps, samples):
    """In a short training the others do not push back yet, and in a long one the rates do not matter any more."""
    x, labels = samples.batch()
    x, y = x.double(), nn.functional.one_hot(labels, L).double()
    rates = length * torch.tensor([1.0, 0.5, 3.0, 1.0, 0.2, 2.0], dtype=torch.float64)
    ends = preconditioned_descent(x, y, rates, steps)
    kept = np.arange(4, N)
    # Without the group, the others keep their weight 1/n each, as they have in the pull.
    without = preconditioned_descent(x[kept], y[kept], rates * len(kept) / N, steps)
    gram, total = x.T @ x / N, (rates * steps).expand(L, D).flatten()
    start = torch.zeros(L, D, dtype=torch.float64)
    pulls = [((x[:4] @ theta.T - y[:4]).T @ x[:4] / N).flatten() for theta in (start, ends)]
    pull = pulls[0] if length < 1e-3 else pulls[1]  # at the checkpoint where the training spends its time
    own = torch.block_diag(*[x[:4].T @ x[:4] / N] * L)
    matrix = torch.diag(1 / total) + torch.block_diag(*[gram] * L) - own
    predicted = torch.linalg.solve(matrix, pull)
    moved = (without - ends).flatten()
    assert float(nn.functional.cosine_similarity(predicted, moved, dim=0)) > 0.999
    assert float(predicted.norm() / moved.norm()) == pytest.approx(1.0, abs=0.03)


class Words(nn.Module):
    """The mean of word embeddings, then a classifier; words beyond the first five are never used."""

    def __init__(self, words):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding, self.classifier = nn.Embedding(words, 4), nn.Linear(4, 2)
        for parameter in (self.classifier.weight, self.classifier.bias):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        self.embedding.weight.data[:5] = torch.randn(5, 4, generator=generator)

    def forward(self, ids):
        return self.classifier(self.embedding(ids).mean(1))


def test_words_that_no_text_has_do_not_change_the_weights_of_other_parameters():
    generator = torch.Generator().manual_seed(2)
    samples = ddm.Samples.from_batch(torch.randint(0, 5, (40, 6), generator=generator), torch.arange(40) % 2)
    recipe = ddm.Recipe(epochs=2, lr=0.01, optimizer="adam", batch_size=8)
    few, many = (ddm.train(Words(count), samples, recipe) for count in (5, 50))
    expected, found = (
        target.flat.unflatten(StepWeights(target, CHECKPOINTS, samples).total(target)) for target in (few, many)
    )
    torch.testing.assert_close(found["embedding.weight"][:5], expected["embedding.weight"])
    torch.testing.assert_close(found["classifier.weight"], expected["classifier.weight"])
