"""Datamodels of linear models, compared with the exact solution without each group."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.counterfactual.displaced import multiples
from ddm.distil.gradient import calibration
from ddm.distil.gradient.calibration import calibrate_step_sizes, curvature_along_each

N, D, K = 4000, 6, 20
TOLERANCE = 0.05
"""A group's own curvature differs from that of all data by at most about √(D / (N/K)) = 0.17, and enters with 1/K."""


def solve(x, y, weights):
    """The exact minimiser (2, D) of the weighted cross-entropy of a linear softmax model, by Newton's method."""
    difference = torch.zeros(D, dtype=torch.float64)
    for _ in range(50):
        p = torch.sigmoid(x @ difference)
        slope = x.T @ (weights * (p - y)) / len(x)
        bend = (x.T * (weights * p * (1 - p))) @ x / len(x)
        difference = difference - torch.linalg.solve(bend, slope)
    return torch.stack([-difference / 2, difference / 2])


def linear(weight):
    network = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
    network.weight.data.copy_(weight)
    return network


@pytest.fixture(scope="module", params=["reverse", "response"])
def logistic(request):
    """Whitened inputs with faint labels: the curvature is then nearly isotropic, and one step is enough."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    x = x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / N)).T
    y = (torch.rand(N, generator=generator) < torch.sigmoid(0.5 * x[:, 0])).double()
    samples = ddm.Samples.from_arrays(x, y.long())
    x = samples.batch()[0].double()  # samples are stored in single precision
    groups = np.arange(N) % K
    everything = torch.ones(N, dtype=torch.float64)
    optimum = linear(solve(x, y, everything))
    trajectory = ddm.Trajectory()
    for t in range(3):
        trajectory.append(optimum.state_dict(), t, 1e4 * t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_SAMPLES", N)  # the exact curvature
        patch.setattr("ddm.datamodel.check", lambda *_: [])  # a target that never moves is refused otherwise
        datamodel = ddm.DistilledDatamodel.fit(
            ddm.Target(optimum, trajectory),
            samples,
            partition=groups,
            matching=request.param,
            distance="cosine",
            steps=300,
            curvature=60_000,  # random rows, so many that their noise stays within the tolerance
        )
    without = [solve(x, y, torch.as_tensor(groups != k).double()) for k in range(K)]
    return samples, datamodel, without


def test_parameters_without_a_group_agree_with_the_exact_solution(logistic):
    _, datamodel, without = logistic
    theta = datamodel.target.theta.view(2, D)
    for group in range(K):
        true = (without[group] - theta).flatten()
        removed = datamodel.partition.mask(group)[None]
        found = datamodel._clusters.parameters(removed)[0] - theta.flatten()
        assert F.cosine_similarity(true, found, dim=0) > 0.99
        assert 1 - TOLERANCE < found.norm() / true.norm() < 1 + TOLERANCE


@pytest.mark.parametrize("logistic", ["response"], indirect=True)
@pytest.mark.parametrize("weight", [0.5, 2, 3, 6])
def test_parameters_with_another_weight_of_a_group_agree_with_the_exact_solution(logistic, weight):
    samples, datamodel, _ = logistic
    (x, y), theta = samples.batch(), datamodel.target.theta
    for group in range(0, K, 4):
        weights = torch.where(torch.as_tensor(datamodel.partition.groups) == group, float(weight), 1.0).double()
        true = solve(x.double(), y.double(), weights).flatten() - theta
        found = datamodel.models.parameters((1 - weight) * datamodel.partition.mask(group)[None].astype(float))[0]
        assert 1 - TOLERANCE < float((found - theta) @ true / true.square().sum()) < 1 + TOLERANCE


@pytest.mark.parametrize("weight", [0, 0.25, 0.5, 2, 3, 10])
def test_the_multiple_of_a_weight_is_exact_where_the_curvature_of_a_group_has_the_shape_of_the_whole(weight):
    generator = torch.Generator().manual_seed(3)
    parts = [torch.linalg.qr(torch.randn(n, D, generator=generator).double())[0] * n**0.5 for n in (30, 50, 20)]
    x, groups = torch.cat(parts), torch.repeat_interleave(torch.arange(3), torch.tensor([30, 50, 20]))
    y = torch.randn(100, generator=generator).double()

    def least_squares(weights):
        return torch.linalg.solve((x.T * weights) @ x, x.T @ (weights * y))

    whole = least_squares(torch.ones(100).double())
    moves = [least_squares((groups != group).double()) - whole for group in range(3)]
    for group, share in enumerate((0.3, 0.5, 0.2)):
        amount = multiples(torch.tensor([[1 - weight]]), torch.tensor([share]).double())[0, 0]
        true = least_squares(torch.where(groups == group, float(weight), 1.0).double()) - whole
        torch.testing.assert_close(amount * moves[group], true)


def test_groups_that_overlap_agree_with_the_exact_solution_without_each():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    y = (torch.rand(N, generator=generator) < torch.sigmoid(0.5 * x[:, 0])).double()
    samples = ddm.Samples.from_arrays(x, y.long())
    x = samples.batch()[0].double()
    groups = {"source": np.arange(0, 200), "annotator": np.arange(100, 300), "other": np.arange(1000, 1200)}
    optimum = linear(solve(x, y, torch.ones(N, dtype=torch.float64)))
    trajectory = ddm.Trajectory()
    for t in range(3):
        trajectory.append(optimum.state_dict(), t, 1e4 * t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddm.datamodel.check", lambda *_: [])
        datamodel = ddm.DistilledDatamodel.fit(
            ddm.Target(optimum, trajectory), samples, partition=groups, curvature=60_000, synset=False
        )

    def without(*names):
        weights = torch.ones(N, dtype=torch.float64)
        for name in names:
            weights[groups[name]] = 0
        return solve(x, y, weights).flatten() - datamodel.target.theta

    def predicted(*names):
        return (datamodel.models.parameters(datamodel.partition.mask(names)[None])[0] - datamodel.target.theta).double()

    for name in groups:
        assert (predicted(name) - without(name)).norm() < 0.05 * without(name).norm()
    apart = "source", "other"
    assert (predicted(*apart) - without(*apart)).norm() < 0.1 * without(*apart).norm()
    assert datamodel.beyond(apart) is None
    # The 100 samples that two groups share count twice in the sum, and once in a training without them.
    together = "source", "annotator"
    assert (predicted(*together) - without(*together)).norm() > 0.2 * without(*together).norm()
    assert "share samples" in datamodel.beyond(together)


def test_attributions_agree_with_exact_retraining(logistic):
    samples, datamodel, without = logistic
    found = datamodel.attribute(samples[:1], "logits").matrix
    x = samples.batch([0])[0].double()
    baseline = datamodel.target.outputs(x)[0]
    true = torch.stack([(weight @ x[0]) - baseline for weight in without]).numpy()
    assert np.corrcoef(found.ravel(), true.ravel())[0, 1] > 0.97
    assert np.polyfit(true.ravel(), found.ravel(), 1)[0] == pytest.approx(1, abs=TOLERANCE)


def test_loss_effects_are_positive_for_every_group_as_in_exact_retraining(logistic):
    samples, datamodel, without = logistic
    x, y = samples.batch()
    base = F.cross_entropy(datamodel.target.outputs(x), y)
    true = [float(F.cross_entropy(x.double() @ weight.T, y) - base) for weight in without]
    found = datamodel.attribute(samples, "loss").scores
    assert all(value > 0 for value in true)  # leaving data out cannot lower the loss on all data
    assert (found > 0).all()


def squared(outputs, labels):
    return (outputs - F.one_hot(labels, outputs.shape[1])).square().sum(1).mean() / 2


def still_target(network):
    """A target of the squared loss whose checkpoints are all the same."""
    trajectory = ddm.Trajectory()
    for t in range(2):
        trajectory.append(network.state_dict(), t)
    return ddm.Target(network, trajectory, squared)


def test_the_curvature_of_the_squared_loss_is_the_second_moment_of_the_inputs():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, D, generator=generator)
    samples = ddm.Samples.from_arrays(x, torch.randint(0, 2, (100,), generator=generator))
    target = still_target(linear(torch.randn(2, D, generator=generator)))
    units = F.normalize(torch.randn(5, 2 * D, generator=generator, dtype=torch.float64), dim=1)
    gram = samples.batch()[0].double()
    gram = gram.T @ gram / len(samples)
    true = torch.einsum("bcd,de,bce->b", units.view(5, 2, D), gram, units.view(5, 2, D))
    torch.testing.assert_close(curvature_along_each(target, samples, units), true, rtol=1e-6, atol=0)


def test_a_calibrated_step_is_the_best_step_along_its_direction():
    generator = torch.Generator().manual_seed(2)
    samples = ddm.Samples.from_arrays(torch.randn(100, D, generator=generator), torch.zeros(100).long(), ["a", "b"])
    target = still_target(linear(torch.randn(2, D, generator=generator)))
    directions, pulls = torch.randn(2, 4, 2 * D, generator=generator, dtype=torch.float64)
    found = calibrate_step_sizes(target, samples, directions, pulls, 0.1)
    x = samples.batch()[0].double()
    for length, direction, pull in zip(found, directions, pulls, strict=True):

        def energy(step, direction=direction, pull=pull):
            moved = step * direction
            change = x @ moved.view(2, D).T
            return change.square().sum(1).mean() / 2 + 0.05 * moved.square().sum() - pull @ moved

        best = min(torch.linspace(-2, 2, 4001, dtype=torch.float64), key=lambda extra: energy(length + extra * 0.1))
        assert abs(best) < 1e-3
