"""The rows of the curvature, and its ways to solve, compared with dense matrices."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ddm
from ddm.curvature.directional import logits_along
from ddm.curvature.gradients import jacobian, output_gradients
from ddm.curvature.krylov import solve_identity_minus
from ddm.curvature.rows import draw_in_rounds, loss_vectors
from ddm.curvature.sampled import SampledCurvature, rows_for
from ddm.data.tasks import task_of


@pytest.fixture(scope="module")
def small(digits):
    """A target of 250 parameters, so that dense matrices are cheap."""
    network = ddm.networks.ConvNet(digits.train.shape, len(digits.classes), width=2, depth=2)
    return ddm.train(network, digits.train, ddm.Recipe(epochs=3, lr=0.1, batch_size=32))


def curvature(target, digits, rows, memory=2.0, damping=0.1):
    return SampledCurvature(target, digits.train, [0, 3], torch.tensor([0.25, 0.75]), damping, rows, memory)


def dense_gauss_newton(target, samples):
    """Σ_t ω_t mean JᵀHJ of all samples, in double precision."""
    x, _ = samples.batch()
    total = 0.0
    for t, weight in ((0, 0.25), (3, 0.75)):
        theta, fixed = target.at(t)
        rows = jacobian(target, theta, fixed, x).double()
        p = target.flat(theta, fixed, x).double().softmax(1)
        bends = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        total = total + weight * torch.einsum("nlp,nlm,nmq->pq", rows, bends, rows) / len(x)
    return total


def test_a_jacobian_is_the_derivative_of_each_logit(small, digits):
    x = digits.test.batch(slice(0, 3))[0]
    found = jacobian(small, small.theta, small.fixed, x)
    theta = small.theta.clone().requires_grad_()
    for row, logits in enumerate(small.flat(theta, small.fixed, x)):
        for label, logit in enumerate(logits):
            wanted = torch.autograd.grad(logit, theta, retain_graph=True)[0]
            torch.testing.assert_close(found[row, label], wanted, rtol=1e-4, atol=1e-6)


def test_a_network_that_cannot_be_vectorised_has_the_same_gradients(small, digits, monkeypatch):
    x = digits.test.batch(slice(0, 3))[0]
    vectors = torch.randn(3, 2, 10)
    wanted = output_gradients(small, small.theta, small.fixed, x, vectors)

    def refuse(*args):
        raise RuntimeError("data-dependent control flow")

    monkeypatch.setattr("ddm.curvature.gradients.vmap", refuse)
    found = output_gradients(small, small.theta, small.fixed, x, vectors)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_change_of_logits_along_a_direction_is_the_jacobian_times_the_direction(small, digits):
    x = digits.test.batch(slice(0, 5))[0]
    direction = 0.3 * torch.randn(small.flat.size)
    wanted = jacobian(small, small.theta, small.fixed, x) @ direction
    logits, found = logits_along(small, small.theta, small.fixed, x, direction)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.01 * float(wanted.abs().max()))
    torch.testing.assert_close(logits, small.outputs(x), rtol=1e-3, atol=1e-3)


def test_more_rows_estimate_the_gauss_newton_matrix_better(small, digits):
    wanted = dense_gauss_newton(small, digits.train)
    apart = []
    for count in (600, 9600):
        rows = torch.cat(list(curvature(small, digits, count).rows.batches())).double()
        assert len(rows) == count
        apart.append(float((rows.T @ rows - wanted).norm() / wanted.norm()))
    assert apart[1] < 0.1
    assert apart[1] < apart[0] / 2  # with sixteen times the rows, a quarter is expected


def test_rows_are_the_same_in_every_pass(small, digits):
    once, again = (torch.cat(list(curvature(small, digits, 40).rows.batches())) for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize(
    ("rows", "memory"),
    [(1000, 2.0), (100, 2.0), (100, 50 * 100 * 4 / 2**30)],
    ids=["columns", "rows", "rows in slices"],
)
@pytest.mark.parametrize("vector", [False, True], ids=["one damping", "a damping each"])
def test_a_solve_agrees_with_the_dense_matrix(small, digits, rows, memory, vector):
    size = small.flat.size
    damping = torch.rand(size) + 0.05 if vector else 0.1
    asked = curvature(small, digits, rows, memory, damping)
    made = torch.cat(list(asked.rows.batches())).double()
    right = torch.randn(4, size)
    dense = made.T @ made + torch.diag(torch.as_tensor(damping).double().expand(size))
    wanted = torch.linalg.solve(dense, right.double().T).T.float()
    torch.testing.assert_close(asked.solve(right), wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(asked.solve(right), wanted, rtol=1e-3, atol=1e-4)  # again, with cached factors


@pytest.mark.parametrize(
    ("rows", "memory"),
    [(1000, 2.0), (100, 2.0), (100, 50 * 100 * 4 / 2**30)],
    ids=["columns", "rows", "rows in slices"],
)
def test_a_solve_without_a_group_agrees_with_the_dense_matrix_of_the_other_rows(small, digits, rows, memory):
    asked = curvature(small, digits, rows, memory, 0.1)
    made = torch.cat(list(asked.rows.batches())).double()
    right = torch.randn(3, small.flat.size, generator=torch.Generator().manual_seed(0))
    members = [np.arange(40), np.arange(100, 300), np.array([], dtype=int)]
    found, whole = asked.solve_without(right, members)
    torch.testing.assert_close(whole, asked.solve(right), rtol=1e-3, atol=1e-3)
    for b, direction, group in zip(right, found, members, strict=True):
        others = made[~np.isin(asked.rows.positions.numpy(), group)]
        dense = others.T @ others + 0.1 * torch.eye(small.flat.size, dtype=torch.float64)
        wanted = torch.linalg.solve(dense, b.double())
        assert (direction - wanted).norm() < 0.01 * wanted.norm()


def test_an_iteration_ends_where_the_basis_spans_all_that_the_operator_reaches():
    generator = torch.Generator().manual_seed(0)
    operators = 0.3 * torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    operators[1, 1:], operators[1, :, 1:] = 0, 0  # reaches one direction only
    right = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    right[1, 1:], right[2] = 0, 0
    found = solve_identity_minus(lambda d: torch.einsum("bij,bj->bi", operators, d), right, 40, 1e-12)
    wanted = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - operators, right)
    torch.testing.assert_close(found, wanted)


def test_trials_of_several_multiples_at_once_agree_with_those_one_by_one(small, digits):
    right, scales = torch.randn(3, small.flat.size), [1.0, 3.0, 30.0]
    kept, sliced = (curvature(small, digits, 100, memory, 0.1) for memory in (2.0, 50 * 100 * 4 / 2**30))
    assert sliced.cost.rows_per_solve > 0 == kept.cost.rows_per_solve
    wanted = [kept.trials(right[:1], [scale])[0] for scale in scales]
    for one, other in zip(sliced.trials(right[:1], scales), wanted, strict=True):
        assert (one.gain, one.missed) == pytest.approx((other.gain, other.missed), rel=1e-3)


def test_progress_counts_every_computed_row(small, digits):
    for rows, memory in ((1000, 2.0), (100, 50 * 100 * 4 / 2**30)):
        asked, counted = curvature(small, digits, rows, memory), []
        asked.prepare(counted.append)
        assert sum(counted) == asked.cost.rows


def test_loss_vectors_have_the_hessian_of_the_loss_as_their_covariance():
    logits, y = torch.randn(1, 5).expand(40_000, 5), torch.full((40_000,), 2)
    hessian = torch.func.hessian(lambda f: F.cross_entropy(f, torch.tensor(2)))(logits[0])
    for loss in (F.cross_entropy, lambda f, label: F.cross_entropy(f, label)):  # by the formula, and by autograd
        vectors = loss_vectors(task_of(loss), logits, y, torch.Generator().manual_seed(0))
        torch.testing.assert_close(vectors.T @ vectors / len(vectors), hessian, rtol=0.05, atol=0.005)


def test_rows_use_every_sample_once_before_any_sample_twice(digits):
    drawn = draw_in_rounds(7, 20, torch.Generator().manual_seed(0)).numpy()
    counts = np.bincount(drawn, minlength=7)
    assert counts.sum() == 20
    assert set(counts) == {2, 3}


@pytest.mark.parametrize("passed", [10**2, 10**4, 10**6])
def test_larger_networks_and_shorter_trainings_have_fewer_rows(passed):
    counts = [rows_for(size, passed) for size in (1_000, 4_000, 16_000, 300_000, 11_000_000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= 16384
    assert counts[2] >= 1024
    assert all(rows_for(size, passed) <= rows_for(size, 10 * passed) for size in (4_000, 16_000, 300_000))


def test_the_work_of_a_solve_is_bounded_for_large_networks():
    for size in (50_000, 300_000, 1_000_000):
        assert rows_for(size, 10**7) ** 2 * size <= 1.1e12
