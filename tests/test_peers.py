"""The peers against what they compute: exact influences, exact leave-group-out, and their own formulas."""

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
from ddm.baselines import BASELINES, CannotRun, Question
from ddm.baselines.arnoldi import arnoldi
from ddm.baselines.effects import sums
from ddm.baselines.ekfac import ekfac
from ddm.baselines.fastif import fastif
from ddm.baselines.hessian import curvature, extremes, hessian_product
from ddm.baselines.koh import koh_cg, koh_lissa
from ddm.baselines.tracin import tracin
from ddm.baselines.trak import trak
from ddm.partition import classwise, given
from ddm.trajectory import Trajectory

N, D, K = 240, 8, 20
DECAY = 0.03
PEERS = ["tracin", "trak", "ekfac", "koh-cg", "koh-lissa", "fastif", "arnoldi"]


class Logistic(nn.Module):
    """Logits (0, wᵀx): unlike a softmax of two weights, its Hessian has no eigenvalue twice."""

    def __init__(self, weight):
        super().__init__()
        self.layer = nn.Linear(len(weight), 1, bias=False).double()
        self.layer.weight.data.copy_(weight[None])

    def forward(self, x):
        z = self.layer(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def draw(count, generator):
    """Inputs with a spread from 0.5 to 1.5 over the directions, so that the Hessian matters, and faint labels."""
    x = torch.randn(count, D, generator=generator) * torch.linspace(0.5, 1.5, D)
    x = x @ torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(9)))[0]
    chance = torch.sigmoid(0.3 * x.sum(1))
    return x, (torch.rand(count, generator=generator) < chance).long()


def hessian(x, weight):
    p = torch.sigmoid(x @ weight)
    return (x.T * (p * (1 - p))) @ x / len(x)


def gradients(x, y, weight):
    return (torch.sigmoid(x @ weight) - y)[:, None] * x


def solve(x, y):
    """The exact minimiser (D,) of the mean loss with weight decay, by Newton's method."""
    weight = torch.zeros(D, dtype=torch.float64)
    for _ in range(30):
        slope = gradients(x, y, weight).mean(0) + DECAY * weight
        weight = weight - torch.linalg.solve(hessian(x, weight) + DECAY * torch.eye(D), slope)
    return weight


def arrays(samples):
    x, y = samples.batch()
    return x.double(), y


@pytest.fixture(scope="module")
def question():
    generator = torch.Generator().manual_seed(0)
    train = ddm.Samples.make(*draw(N, generator))
    test, validation = (ddm.Samples.make(*draw(count, generator), train.classes) for count in (10, 25))
    weight = solve(*arrays(train))
    trajectory = Trajectory()
    for step, share in enumerate([0.0, 0.4, 0.7, 1.0]):
        trajectory.append(Logistic(share * weight).state_dict(), step, [0.0, 1.0, 3.0, 3.5][step])
    target = ddm.Target(Logistic(weight), trajectory, recipe=ddm.Recipe(weight_decay=DECAY))
    return Question(target, train, given(train, np.arange(N) % K), test, validation)


@pytest.fixture(scope="module")
def parts(question):
    """H + λI, the summed gradients of groups (K, D) over n, and those of test samples (m, D) and validation (D,)."""
    weight = question.target.theta
    x, _ = arrays(question.train)
    bend = hessian(x, weight) + DECAY * torch.eye(D)
    pulls = torch.as_tensor(sums(question.partition, gradients(*arrays(question.train), weight))) / N
    asked = gradients(*arrays(question.test), weight)
    return bend, pulls, asked, gradients(*arrays(question.validation), weight).mean(0)


@pytest.fixture(scope="module")
def exact(parts):
    bend, pulls, asked, mean = parts
    moves = torch.linalg.solve(bend, pulls.T).T
    return (moves @ asked.T).numpy(), (moves @ mean).numpy()


@pytest.fixture(scope="module")
def plain(parts):
    """Without the inverse Hessian: what a test must be able to tell from the exact influence."""
    _, pulls, asked, _ = parts
    return (pulls @ asked.T).numpy()


def distance(found, true):
    """The largest difference, as a fraction of the largest true value."""
    return np.abs(found - true).max() / np.abs(true).max()


def agreement(found, true):
    return np.corrcoef(found.ravel(), true.ravel())[0, 1]


def order(found, true):
    """Spearman's correlation over groups, the mean over samples."""
    return np.mean([spearmanr(found[:, i], true[:, i])[0] for i in range(true.shape[1])])


@pytest.fixture(scope="module", params=["koh-cg", "koh-lissa", "fastif", "arnoldi"])
def full(question, request):
    """The scores of a method that is exact in the limit, taken to the limit."""
    methods = {
        "koh-cg": lambda: koh_cg(question, iterations=D),
        "koh-lissa": lambda: koh_lissa(question, depth=60, batch=N),
        "fastif": lambda: fastif(question, neighbours=N, depth=60, batch=N),
        "arnoldi": lambda: arnoldi(question, steps=D + 1, rank=D),
    }
    return methods[request.param]()


def test_the_damping_of_a_convex_problem_is_its_weight_decay(question, parts):
    bend = curvature(question)
    assert len(bend.x) == N
    assert bend.damping == DECAY
    assert bend.highest == pytest.approx(float(torch.linalg.eigvalsh(parts[0])[-1]) - DECAY, rel=1e-6)


def test_the_damping_is_above_the_most_negative_eigenvalue(target, digits):
    question = Question(target, digits.train, classwise(digits.train), digits.test, digits.validation)
    bend = curvature(question, limit=40)
    product = hessian_product(question, bend.x, bend.y)
    lowest, highest = extremes(product, target.theta, torch.Generator().manual_seed(7), steps=80)
    assert lowest < 0
    assert bend.damping > -lowest
    assert bend.highest == pytest.approx(highest, rel=1e-3)


def test_lanczos_finds_the_ends_of_a_known_spectrum():
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(60, 60, generator=generator, dtype=torch.float64))[0]
    matrix = basis @ torch.diag(torch.linspace(-0.7, 5, 60, dtype=torch.float64)) @ basis.T
    lowest, highest = extremes(lambda vector: matrix @ vector, torch.zeros(60, dtype=torch.float64), generator, 60)
    assert lowest == pytest.approx(-0.7, rel=1e-6)
    assert highest == pytest.approx(5, rel=1e-6)


def test_influences_are_those_of_a_dense_solve(full, exact, plain):
    loss, validation = exact
    assert distance(full.loss, loss) < 1e-3
    assert distance(full.validation, validation) < 1e-3
    np.testing.assert_array_equal(full.shift, np.abs(full.loss))
    assert distance(-full.loss, loss) > 1
    assert distance(plain, loss) > 0.3


def test_influences_are_what_exact_retraining_without_a_group_does(question, full, plain):
    weight = question.target.theta
    x, y = arrays(question.train)

    def losses(at, samples):
        inputs, labels = arrays(samples)
        return F.cross_entropy(Logistic(at)(inputs), labels, reduction="none").detach().numpy()

    without = [solve(x[kept], y[kept]) for kept in (question.partition.groups != k for k in range(K))]
    true = np.stack([losses(other, question.test) - losses(weight, question.test) for other in without])
    mean = [losses(other, question.validation).mean() - losses(weight, question.validation).mean() for other in without]
    assert agreement(full.loss, true) > 0.97
    assert agreement(full.validation, np.array(mean)) > 0.97
    assert np.polyfit(true.ravel(), full.loss.ravel(), 1)[0] == pytest.approx(1, abs=0.15)
    assert agreement(-full.loss, true) < 0
    assert agreement(plain, true) < 0.95


def test_lissa_leaves_out_the_rest_of_its_series(question, parts):
    bend, pulls, asked, _ = parts
    depth = 5
    scale = 1.1 * float(torch.linalg.eigvalsh(bend)[-1])
    step = torch.eye(D) - bend / scale
    series = sum(torch.linalg.matrix_power(step, j) for j in range(depth + 1)) / scale
    scores = koh_lissa(question, depth=depth, batch=N)
    assert distance(scores.loss, (pulls @ series @ asked.T).numpy()) < 1e-4


def test_lissa_on_batches_is_near_and_reproducible(question, exact):
    quarters = replace(question, partition=given(question.train, question.partition.groups % 4))
    true = sums(given(question.train[:K], np.arange(K) % 4), exact[0])
    assert agreement(koh_lissa(quarters).loss, true) > 0.85
    assert agreement(koh_lissa(quarters, depth=2).loss, -true) < 0
    np.testing.assert_array_equal(koh_lissa(quarters, depth=2).loss, koh_lissa(quarters, depth=2).loss)


def test_fastif_scores_only_the_nearest(question):
    near = fastif(question, neighbours=1, depth=5)
    x, _ = arrays(question.train)
    for column, sample in enumerate(arrays(question.test)[0]):
        nearest = question.partition.groups[(x - sample).norm(dim=1).argmin()]
        assert np.flatnonzero(near.loss[:, column]).tolist() == [nearest]


def test_ekfac_is_exact_where_predictions_are_near_a_half(question, exact, plain):
    # The Fisher information is E[p(1−p) xxᵀ]: with p(1−p) nearly the same for all samples it has the eigenvectors of
    # E[xxᵀ], which is what EK-FAC assumes; what is left is the noise of the labels it draws.
    scores = ekfac(question, damping=DECAY)
    assert order(scores.loss, exact[0]) > 0.97
    assert order(plain, exact[0]) < 0.95
    assert np.polyfit(exact[0].ravel(), scores.loss.ravel(), 1)[0] == pytest.approx(1, abs=0.2)
    assert agreement(scores.validation, exact[1]) > 0.97


def test_tracin_is_the_sum_over_checkpoints(question):
    weight = question.target.theta
    loss, validation = np.zeros((K, len(question.test))), np.zeros(K)
    for share, length in ((0.4, 1.0), (0.7, 2.0), (1.0, 0.5)):
        at = share * weight
        pulls = sums(question.partition, gradients(*arrays(question.train), at)) / N
        loss += length * pulls @ gradients(*arrays(question.test), at).numpy().T
        validation += length * pulls @ gradients(*arrays(question.validation), at).mean(0).numpy()
    scores = tracin(question)
    assert distance(scores.loss, loss) < 1e-5
    assert distance(scores.validation, validation) < 1e-5


def test_tracin_weighs_checkpoints_alike_where_lengths_are_unknown(question):
    trajectory = Trajectory()
    for t, state in enumerate(question.target.trajectory):
        trajectory.append(state, t, float("nan") if t else 0.0)
    unknown = replace(question, target=ddm.Target(question.target.network, trajectory))
    weight = question.target.theta
    loss = sum(
        sums(question.partition, gradients(*arrays(question.train), share * weight))
        / N
        @ gradients(*arrays(question.test), share * weight).numpy().T
        for share in (0.4, 0.7, 1.0)
    )
    assert distance(tracin(unknown).loss, loss) < 1e-5


def test_tracin_of_few_checkpoints_keeps_the_whole_length(question):
    from ddm.baselines.tracin import steps

    assert steps(question.target.trajectory, 16) == {1: 1.0, 2: 2.0, 3: 0.5}
    assert steps(question.target.trajectory, 1) == {3: 3.5}
    assert sum(steps(question.target.trajectory, 2).values()) == 3.5


def test_trak_without_loss_of_dimension_is_its_formula(question):
    # A square projection is invertible, and (ΦᵀΦ)⁻¹ undoes it.
    (x, y), (asked, labels) = arrays(question.train), arrays(question.test)
    weight = question.target.theta
    features, theirs = x * (2 * y - 1)[:, None], asked * (2 * labels - 1)[:, None]
    doubt, their_doubt = torch.sigmoid(-features @ weight), torch.sigmoid(-theirs @ weight)
    scores = (features * doubt[:, None]) @ torch.linalg.inv(features.T @ features) @ theirs.T
    true = sums(question.partition, scores) * their_doubt.numpy()
    found = trak(question, checkpoints=1, dimension=D)
    assert agreement(found.loss, true) > 0.999
    plain = sums(question.partition, (features * doubt[:, None]) @ theirs.T) * their_doubt.numpy()
    assert agreement(plain, true) < 0.95


def test_trak_is_the_influence_where_predictions_are_near_a_half(question, exact):
    assert order(trak(question, dimension=D).loss, exact[0]) > 0.9


@pytest.fixture(scope="module")
def convolutional(target, digits):
    train = digits.train[:120]
    return Question(target, train, classwise(train), digits.test[:6], digits.test[:6])


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_network_is_scored_and_left_as_it_was(convolutional, name):
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
    if name != "fastif":  # which takes the neighbours of the set, not of each sample
        assert distance(scores.validation, scores.loss.mean(1)) < 1e-3
    assert hooks == [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, type(m)) for m in network.modules()]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())
    assert not network.training
    assert convolutional.target.fingerprint() == before[0]
    assert logging.getLogger().handlers == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


@pytest.mark.slow
def test_peers_say_nothing(convolutional, capfd):
    for name in ("tracin", "trak", "ekfac"):
        BASELINES[name](convolutional)
    out, err = capfd.readouterr()
    assert out + err == ""


def refusal(name, question):
    with pytest.raises(CannotRun) as caught:
        BASELINES[name](question)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


class Once(torch.autograd.Function):
    """x ↦ x² whose gradient cannot be differentiated again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Flat(nn.Module):
    """A network with no layer of a known kind."""

    def __init__(self, once=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, D))
        self.once = once

    def forward(self, x):
        z = x @ self.weight.T
        return Once.apply(z) if self.once else z


def asked_of(question, network, loss=F.cross_entropy):
    recorder = ddm.Recorder(network)
    recorder.snapshot(length=1.0)
    return replace(question, target=recorder.target(loss))


@pytest.mark.parametrize("name", ["koh-cg", "koh-lissa", "fastif", "arnoldi"])
def test_a_network_that_cannot_be_differentiated_twice_is_refused(question, name):
    assert "cannot run on this network" in refusal(name, asked_of(question, Flat(once=True)))


def test_a_network_without_known_layers_is_refused_by_those_that_need_one(question):
    assert "layer" in refusal("ekfac", asked_of(question, Flat()))
    assert np.isfinite(BASELINES["koh-cg"](asked_of(question, Flat())).loss).all()


def test_another_loss_is_refused_by_those_that_know_only_one(question):
    assert "cross-entropy" in refusal("trak", asked_of(question, Flat(), lambda a, y: F.multi_margin_loss(a, y)))


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
def test_a_peer_that_is_missing_is_named_with_how_to_install_it(question, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert "is not installed: pip install 'distilled-datamodel[bench]'." in refusal(name, question)
