"""Influence libraries, checked against exact influences, exact leave-group-out retraining and their own formulas."""

import logging
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.baselines import BASELINES, CannotRun, ScoreRequest
from ddm.baselines.arnoldi import arnoldi
from ddm.baselines.ekfac import ekfac
from ddm.baselines.fastif import fastif
from ddm.baselines.group_scores import sum_over_groups
from ddm.baselines.hessian import estimate_curvature, extreme_eigenvalues, hessian_product
from ddm.baselines.koh import koh_cg, koh_lissa
from ddm.baselines.tracin import tracin
from ddm.baselines.trak import trak
from ddm.groups.partition import classwise, from_groups
from ddm.training.trajectory import Trajectory

N, D, K = 240, 8, 20
DECAY = 0.03
PEERS = ["tracin", "trak", "ekfac", "koh-cg", "koh-lissa", "fastif", "arnoldi"]


class Logistic(nn.Module):
    """Logits (0, wᵀx). Unlike a softmax with two weight vectors, its Hessian has no repeated eigenvalues."""

    def __init__(self, weight):
        super().__init__()
        self.layer = nn.Linear(len(weight), 1, bias=False).double()
        self.layer.weight.data.copy_(weight[None])

    def forward(self, x):
        z = self.layer(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def draw_samples(count, generator):
    """Inputs whose standard deviation ranges from 0.5 to 1.5, so that the Hessian matters, and noisy labels."""
    x = torch.randn(count, D, generator=generator) * torch.linspace(0.5, 1.5, D)
    x = x @ torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(9)))[0]
    chance = torch.sigmoid(0.3 * x.sum(1))
    return x, (torch.rand(count, generator=generator) < chance).long()


def hessian(x, weight):
    p = torch.sigmoid(x @ weight)
    return (x.T * (p * (1 - p))) @ x / len(x)


def gradients(x, y, weight):
    return (torch.sigmoid(x @ weight) - y)[:, None] * x


def fit_exactly(x, y):
    """The exact minimiser (D,) of the mean loss with weight decay, by Newton's method."""
    weight = torch.zeros(D, dtype=torch.float64)
    for _ in range(30):
        slope = gradients(x, y, weight).mean(0) + DECAY * weight
        weight = weight - torch.linalg.solve(hessian(x, weight) + DECAY * torch.eye(D), slope)
    return weight


def double_batch(samples):
    x, y = samples.batch()
    return x.double(), y


@pytest.fixture(scope="module")
def score_request():
    generator = torch.Generator().manual_seed(0)
    train = ddm.Samples.from_arrays(*draw_samples(N, generator))
    test, validation = (ddm.Samples.from_arrays(*draw_samples(count, generator), train.classes) for count in (10, 25))
    weight = fit_exactly(*double_batch(train))
    trajectory = Trajectory()
    for step, share in enumerate([0.0, 0.4, 0.7, 1.0]):
        trajectory.append(Logistic(share * weight).state_dict(), step, [0.0, 1.0, 3.0, 3.5][step])
    target = ddm.Target(Logistic(weight), trajectory, recipe=ddm.Recipe(weight_decay=DECAY))
    return ScoreRequest(target, train, from_groups(train, np.arange(N) % K), test, validation)


@pytest.fixture(scope="module")
def influence_terms(score_request):
    """H + λI; gradients summed over groups, divided by n (K, D); those of test samples (m, D) and validation (D,)."""
    weight = score_request.target.theta
    x, _ = double_batch(score_request.train)
    bend = hessian(x, weight) + DECAY * torch.eye(D)
    pulls = sum_over_groups(score_request.partition, gradients(*double_batch(score_request.train), weight)) / N
    asked = gradients(*double_batch(score_request.test), weight)
    return bend, torch.as_tensor(pulls), asked, gradients(*double_batch(score_request.validation), weight).mean(0)


@pytest.fixture(scope="module")
def exact(influence_terms):
    bend, pulls, asked, mean = influence_terms
    moves = torch.linalg.solve(bend, pulls.T).T
    return (moves @ asked.T).numpy(), (moves @ mean).numpy()


@pytest.fixture(scope="module")
def gradient_products(influence_terms):
    """Scores without the inverse Hessian, which a test must be able to tell from the exact influence."""
    _, pulls, asked, _ = influence_terms
    return (pulls @ asked.T).numpy()


def relative_error(found, true):
    """The largest error, relative to the largest true value."""
    return np.abs(found - true).max() / np.abs(true).max()


def correlation(found, true):
    return np.corrcoef(found.ravel(), true.ravel())[0, 1]


def mean_rank_correlation(found, true):
    """Spearman correlation over groups, averaged over samples."""
    return np.mean([spearmanr(found[:, i], true[:, i])[0] for i in range(true.shape[1])])


@pytest.fixture(scope="module", params=["koh-cg", "koh-lissa", "fastif", "arnoldi"])
def converged(score_request, request):
    """Scores of a method that converges to the exact influence, with enough steps to converge."""
    methods = {
        "koh-cg": lambda: koh_cg(score_request, iterations=D),
        "koh-lissa": lambda: koh_lissa(score_request, depth=60, batch=N),
        "fastif": lambda: fastif(score_request, neighbours=N, depth=60, batch=N),
        "arnoldi": lambda: arnoldi(score_request, steps=D + 1, rank=D),
    }
    return methods[request.param]()


def test_the_damping_of_a_convex_problem_is_its_weight_decay(score_request, influence_terms):
    bend = estimate_curvature(score_request)
    assert len(bend.x) == N
    assert bend.damping == DECAY
    assert bend.highest == pytest.approx(float(torch.linalg.eigvalsh(influence_terms[0])[-1]) - DECAY, rel=1e-6)


def test_the_damping_exceeds_the_most_negative_eigenvalue(target, digits):
    score_request = ScoreRequest(target, digits.train, classwise(digits.train), digits.test, digits.validation)
    bend = estimate_curvature(score_request, limit=40)
    product = hessian_product(score_request, bend.x, bend.y)
    lowest, highest = extreme_eigenvalues(product, target.theta, torch.Generator().manual_seed(7), steps=80)
    assert lowest < 0
    assert bend.damping > -lowest
    assert bend.highest == pytest.approx(highest, rel=1e-3)


def test_lanczos_finds_the_extreme_eigenvalues_of_a_known_matrix():
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(60, 60, generator=generator, dtype=torch.float64))[0]
    matrix = basis @ torch.diag(torch.linspace(-0.7, 5, 60, dtype=torch.float64)) @ basis.T
    lowest, highest = extreme_eigenvalues(
        lambda vector: matrix @ vector, torch.zeros(60, dtype=torch.float64), generator, 60
    )
    assert lowest == pytest.approx(-0.7, rel=1e-6)
    assert highest == pytest.approx(5, rel=1e-6)


def test_converged_influences_match_a_dense_solve(converged, exact, gradient_products):
    loss, validation = exact
    assert relative_error(converged.loss, loss) < 1e-3
    assert relative_error(converged.validation, validation) < 1e-3
    np.testing.assert_array_equal(converged.shift, np.abs(converged.loss))
    assert relative_error(-converged.loss, loss) > 1
    assert relative_error(gradient_products, loss) > 0.3


def test_converged_influences_predict_retraining_without_a_group(score_request, converged, gradient_products):
    weight = score_request.target.theta
    x, y = double_batch(score_request.train)

    def losses(at, samples):
        inputs, labels = double_batch(samples)
        return F.cross_entropy(Logistic(at)(inputs), labels, reduction="none").detach().numpy()

    without = [fit_exactly(x[kept], y[kept]) for kept in (score_request.partition.groups != k for k in range(K))]
    true = np.stack([losses(other, score_request.test) - losses(weight, score_request.test) for other in without])
    mean = [
        losses(other, score_request.validation).mean() - losses(weight, score_request.validation).mean()
        for other in without
    ]
    assert correlation(converged.loss, true) > 0.97
    assert correlation(converged.validation, np.array(mean)) > 0.97
    assert np.polyfit(true.ravel(), converged.loss.ravel(), 1)[0] == pytest.approx(1, abs=0.15)
    assert correlation(-converged.loss, true) < 0
    assert correlation(gradient_products, true) < 0.95


def test_lissa_truncates_its_series_at_the_given_depth(score_request, influence_terms):
    bend, pulls, asked, _ = influence_terms
    depth = 5
    scale = 1.1 * float(torch.linalg.eigvalsh(bend)[-1])
    step = torch.eye(D) - bend / scale
    series = sum(torch.linalg.matrix_power(step, j) for j in range(depth + 1)) / scale
    scores = koh_lissa(score_request, depth=depth, batch=N)
    assert relative_error(scores.loss, (pulls @ series @ asked.T).numpy()) < 1e-4


def test_lissa_on_batches_is_close_and_reproducible(score_request, exact):
    quarters = replace(score_request, partition=from_groups(score_request.train, score_request.partition.groups % 4))
    true = sum_over_groups(from_groups(score_request.train[:K], np.arange(K) % 4), exact[0])
    assert correlation(koh_lissa(quarters).loss, true) > 0.85
    assert correlation(koh_lissa(quarters, depth=2).loss, -true) < 0
    np.testing.assert_array_equal(koh_lissa(quarters, depth=2).loss, koh_lissa(quarters, depth=2).loss)


def test_fastif_scores_only_the_nearest_training_samples(score_request):
    near = fastif(score_request, neighbours=1, depth=5)
    x, _ = double_batch(score_request.train)
    for column, sample in enumerate(double_batch(score_request.test)[0]):
        nearest = score_request.partition.groups[(x - sample).norm(dim=1).argmin()]
        assert np.flatnonzero(near.loss[:, column]).tolist() == [nearest]


def test_ekfac_is_exact_if_predicted_probabilities_are_near_one_half(score_request, exact, gradient_products):
    # The Fisher information is E[p(1−p) xxᵀ]. If p(1−p) is nearly constant, it has the eigenvectors of E[xxᵀ], as
    # EK-FAC assumes. The remaining error is the noise of the labels that EK-FAC draws.
    scores = ekfac(score_request, damping=DECAY)
    assert mean_rank_correlation(scores.loss, exact[0]) > 0.97
    assert mean_rank_correlation(gradient_products, exact[0]) < 0.95
    assert np.polyfit(exact[0].ravel(), scores.loss.ravel(), 1)[0] == pytest.approx(1, abs=0.2)
    assert correlation(scores.validation, exact[1]) > 0.97


def test_tracin_sums_gradient_products_over_checkpoints(score_request):
    weight = score_request.target.theta
    loss, validation = np.zeros((K, len(score_request.test))), np.zeros(K)
    for share, length in ((0.4, 1.0), (0.7, 2.0), (1.0, 0.5)):
        at = share * weight
        pulls = sum_over_groups(score_request.partition, gradients(*double_batch(score_request.train), at)) / N
        loss += length * pulls @ gradients(*double_batch(score_request.test), at).numpy().T
        validation += length * pulls @ gradients(*double_batch(score_request.validation), at).mean(0).numpy()
    scores = tracin(score_request)
    assert relative_error(scores.loss, loss) < 1e-5
    assert relative_error(scores.validation, validation) < 1e-5


def test_tracin_weights_checkpoints_equally_if_learning_rates_are_unknown(score_request):
    trajectory = Trajectory()
    for t, state in enumerate(score_request.target.trajectory):
        trajectory.append(state, t, float("nan") if t else 0.0)
    unknown = replace(score_request, target=ddm.Target(score_request.target.network, trajectory))
    weight = score_request.target.theta
    loss = sum(
        sum_over_groups(score_request.partition, gradients(*double_batch(score_request.train), share * weight))
        / N
        @ gradients(*double_batch(score_request.test), share * weight).numpy().T
        for share in (0.4, 0.7, 1.0)
    )
    assert relative_error(tracin(unknown).loss, loss) < 1e-5


def test_tracin_weights_of_few_checkpoints_still_sum_to_the_whole_training(score_request):
    from ddm.baselines.tracin import checkpoint_weights

    assert checkpoint_weights(score_request.target.trajectory, 16) == {1: 1.0, 2: 2.0, 3: 0.5}
    assert checkpoint_weights(score_request.target.trajectory, 1) == {3: 3.5}
    assert sum(checkpoint_weights(score_request.target.trajectory, 2).values()) == 3.5


def test_trak_with_a_square_projection_matches_its_formula(score_request):
    # A square projection is invertible, and (ΦᵀΦ)⁻¹ undoes it.
    (x, y), (asked, labels) = double_batch(score_request.train), double_batch(score_request.test)
    weight = score_request.target.theta
    features, theirs = x * (2 * y - 1)[:, None], asked * (2 * labels - 1)[:, None]
    doubt, their_doubt = torch.sigmoid(-features @ weight), torch.sigmoid(-theirs @ weight)
    scores = (features * doubt[:, None]) @ torch.linalg.inv(features.T @ features) @ theirs.T
    true = sum_over_groups(score_request.partition, scores) * their_doubt.numpy()
    found = trak(score_request, checkpoints=1, dimension=D)
    assert correlation(found.loss, true) > 0.999
    unsolved = sum_over_groups(score_request.partition, (features * doubt[:, None]) @ theirs.T) * their_doubt.numpy()
    assert correlation(unsolved, true) < 0.95


def test_trak_ranks_like_influence_if_predicted_probabilities_are_near_one_half(score_request, exact):
    assert mean_rank_correlation(trak(score_request, dimension=D).loss, exact[0]) > 0.9


@pytest.fixture(scope="module")
def convolutional(target, digits):
    train = digits.train[:120]
    return ScoreRequest(target, train, classwise(train), digits.test[:6], digits.test[:6])


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_scoring_leaves_the_network_and_global_state_unchanged(convolutional, name):
    network = convolutional.target.network
    before = convolutional.target.fingerprint(), logging.getLogger().handlers[:], torch.random.get_rng_state()
    hooks = [
        (m._forward_hooks.copy(), m._forward_pre_hooks.copy(), m._backward_hooks.copy(), type(m))
        for m in network.modules()
    ]
    scores = BASELINES[name](convolutional)
    assert scores.shift.shape == scores.loss.shape == (10, 6)
    assert scores.validation.shape == (10,)
    assert np.isfinite(scores.loss).all()
    assert np.abs(scores.loss).max() > 0
    if name != "fastif":  # FastIF takes neighbours of the whole validation set, not of each sample
        assert relative_error(scores.validation, scores.loss.mean(1)) < 1e-3
    assert hooks == [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, type(m)) for m in network.modules()]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())
    assert not network.training
    assert convolutional.target.fingerprint() == before[0]
    assert logging.getLogger().handlers == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


@pytest.mark.slow
def test_libraries_print_nothing(convolutional, capfd):
    for name in ("tracin", "trak", "ekfac"):
        BASELINES[name](convolutional)
    out, err = capfd.readouterr()
    assert out + err == ""


def refusal_message(name, score_request):
    with pytest.raises(CannotRun) as caught:
        BASELINES[name](score_request)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


class OnceDifferentiableSquare(torch.autograd.Function):
    """x ↦ x² whose gradient cannot be differentiated a second time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class BareWeight(nn.Module):
    """A network without any standard layer."""

    def __init__(self, once=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, D))
        self.once = once

    def forward(self, x):
        z = x @ self.weight.T
        return OnceDifferentiableSquare.apply(z) if self.once else z


def request_for(score_request, network, loss=F.cross_entropy):
    trajectory = Trajectory()
    for t in range(2):
        trajectory.append(network.state_dict(), t, float(t))
    return replace(score_request, target=ddm.Target(network, trajectory, loss))


@pytest.mark.parametrize("name", ["koh-cg", "koh-lissa", "fastif", "arnoldi"])
def test_a_network_that_cannot_be_differentiated_twice_is_refused(score_request, name):
    assert "cannot run on this network" in refusal_message(name, request_for(score_request, BareWeight(once=True)))


def test_ekfac_refuses_a_network_without_standard_layers_and_koh_does_not(score_request):
    assert "layer" in refusal_message("ekfac", request_for(score_request, BareWeight()))
    assert np.isfinite(BASELINES["koh-cg"](request_for(score_request, BareWeight())).loss).all()


def test_trak_refuses_a_loss_other_than_cross_entropy(score_request):
    assert "cross-entropy" in refusal_message(
        "trak", request_for(score_request, BareWeight(), lambda a, y: F.multi_margin_loss(a, y))
    )


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("tracin", "captum.influence"),
        ("trak", "trak"),
        ("ekfac", "kronfluence.analyzer"),
        ("koh-cg", "dattri.algorithm.influence_function"),
        ("koh-lissa", "dattri.algorithm.influence_function"),
        ("fastif", "dattri.algorithm.influence_function"),
        ("arnoldi", "captum.influence._core.arnoldi_influence_function"),
    ],
)
def test_a_missing_library_is_named_with_how_to_install_it(score_request, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert "is not installed: pip install 'distilled-datamodel[bench]'." in refusal_message(name, score_request)
