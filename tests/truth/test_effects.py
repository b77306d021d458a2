"""Effects, compared with plain formulas, with the datamodel's own answers and with a model in closed form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ddm
import ddm.groups.partition
from ddm.data import Samples
from ddm.truth import effects
from ddm.truth.effects import EffectQuery
from ddm.truth.retraining import Retraining

LABELS = torch.tensor([0, 2, 1, 1])


def logits(*shape, seed=0, scale=3.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def softmax(values):
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# --- formulas ---


def test_shift_is_the_squared_distance_of_the_probabilities():
    some, base = logits(5, 4, 3), logits(4, 3, seed=1)
    expected = ((softmax(some.double().numpy()) - softmax(base.double().numpy())) ** 2).sum(-1)
    assert effects.shift(some, base).numpy() == pytest.approx(expected, rel=1e-12)
    assert not effects.shift(base, base).any()


def test_loss_and_margin_are_logarithms_of_the_probability_of_the_right_class():
    some = logits(5, 4, 3)
    right = np.take_along_axis(softmax(some.double().numpy()), LABELS.numpy()[None, :, None], -1)[..., 0]
    assert effects.cross_entropy(some, LABELS).numpy() == pytest.approx(-np.log(right), rel=1e-9)
    assert effects.log_odds(some, LABELS).numpy() == pytest.approx(np.log(right / (1 - right)), rel=1e-9)


def test_effects_are_computed_in_float64():
    some = logits(4, 3)
    for values in (
        effects.shift(some, some + 1),
        effects.cross_entropy(some, LABELS),
        effects.log_odds(some, LABELS),
    ):
        assert values.dtype == torch.float64
    # a change that float32 probabilities would round away
    sure = torch.tensor([[30.0, 0.0, 0.0], [31.0, 0.0, 0.0]])
    low, high = effects.log_odds(sure, torch.tensor([0, 0]))
    assert float(high - low) == pytest.approx(1)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 3))
def test_the_margin_decreases_with_the_loss(seed, scale):
    some = logits(50, 4, 3, seed=seed, scale=scale)
    loss, margin = effects.cross_entropy(some, LABELS), effects.log_odds(some, LABELS)
    assert torch.allclose(margin, -torch.log(torch.expm1(loss)), rtol=1e-6, atol=1e-6)
    order = loss.flatten().argsort()
    assert (margin.flatten()[order].diff() <= 1e-9).all()


def test_saturated_logits_stay_finite():
    some = torch.tensor([[2e4, -1e4, -1e4], [-1e4, 2e4, -1e4]])
    labels = torch.tensor([0, 0])
    margin = effects.log_odds(some, labels)
    assert margin.tolist() == pytest.approx([3e4 - np.log(2), -3e4])
    assert effects.cross_entropy(some, labels).tolist() == pytest.approx([0, 3e4])
    assert effects.shift(some, some.flip(0)).tolist() == pytest.approx([2, 2])


# --- queries ---


@pytest.fixture(scope="module")
def asked(digits):
    unions = np.zeros((2, 30), dtype=bool)
    unions[0, [1, 4, 20]] = unions[1, 3:9] = True
    return EffectQuery(digits.test[:12], digits.validation[:20], np.arange(30), unions)


def test_single_groups_are_removed_before_unions(asked):
    few = EffectQuery(asked.test, asked.validation, np.array([4, 1]), asked.unions)
    assert few.removed.dtype == bool
    assert [np.flatnonzero(row).tolist() for row in few.removed] == [[4], [1], [1, 4, 20], [3, 4, 5, 6, 7, 8]]
    assert torch.equal(few.inputs(), torch.cat([asked.test.batch()[0], asked.validation.batch()[0]]))


# --- predicted effects ---


@pytest.fixture(scope="module")
def predicted(datamodel, asked):
    return effects.predict_effects(datamodel._clusters, asked)


def test_predicted_effects_equal_those_of_attribute(datamodel, asked, predicted):
    mean = datamodel.attribute(asked.test, "prediction").matrix[:, 0]
    assert predicted.shift.mean(1) == pytest.approx(mean, rel=1e-3, abs=1e-6)
    one = datamodel.attribute(asked.test[[5]], "prediction").matrix[:, 0]
    assert predicted.shift[:, 5] == pytest.approx(one, rel=1e-3, abs=1e-6)
    loss = datamodel.attribute(asked.validation, "loss").matrix[:, 0]
    assert predicted.validation == pytest.approx(loss, rel=1e-3, abs=1e-5)
    assert np.ptp(predicted.validation) > 1e-3


def test_predicted_margins_equal_those_of_the_counterfactual_networks(datamodel, asked, predicted):
    x, y = asked.test.batch()
    base = effects.log_odds(datamodel.target.outputs(x), y)
    assert predicted.base == pytest.approx(base.numpy())
    for removed, found in ((["2/1"], predicted.margin[7]), ([1, 4, 20], predicted.unions[0])):
        with torch.no_grad():
            without = effects.log_odds(datamodel.counterfactual(removed)(x), y)
        assert found == pytest.approx((without - base).numpy(), rel=1e-3, abs=1e-4)


def test_the_effects_of_some_groups_are_rows_of_the_effects_of_all_groups(datamodel, asked, predicted):
    chosen = np.array([2, 11, 29])
    alone = effects.predict_effects(
        datamodel._clusters, EffectQuery(asked.test, asked.validation, chosen, asked.unions)
    )
    of = predicted.of(chosen)
    for name in ("shift", "margin", "validation", "unions", "base"):
        assert getattr(of, name) == pytest.approx(getattr(alone, name), rel=1e-4, abs=1e-6)
    assert of.shift.shape == of.margin.shape == (3, 12)
    assert of.validation.shape == (3,)


# --- measured effects ---


class Means:
    """A training with a closed form: the logit of a class is the input times the class's mean, whatever the order."""

    def __init__(self, samples):
        self.samples = samples

    def weights(self, rows, order):
        kept = np.setdiff1d(np.arange(len(self.samples)), rows)
        x, y = (values.numpy() for values in self.samples[kept].batch())
        return (1 + order) * np.stack([x[y == label].mean(0) for label in range(2)])

    def __call__(self, rows, order):
        network = nn.Linear(3, 2, bias=False)
        network.weight.data = torch.as_tensor(self.weights(rows, order))
        return network


def test_measured_effects_equal_the_closed_form_of_a_model_of_class_means(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(24) % 2
    samples = Samples.from_arrays(random.normal(labels[:, None], 1, (24, 3)), labels)
    means = Means(samples)
    recorder = ddm.Recorder(means([], 0))
    recorder.snapshot()
    partition = ddm.groups.partition.from_groups(samples, np.arange(24) // 2 % 4)
    groups, union = np.array([3, 1]), np.array([[True, False, False, True]])
    asked = EffectQuery(samples[:5], samples[5:16], groups, union)
    retraining = Retraining(recorder.target(), samples, tmp_path, retrain=means, workers=1)
    removed = [*(partition.rows(k) for k in groups), np.union1d(partition.rows(0), partition.rows(3))]

    def expected(rows, order):
        x, y = (values.numpy().astype(float) for values in samples.batch())
        scores = x @ means.weights(rows, order).T.astype(float)
        margin = np.where(y == 0, 1, -1) * (scores[:, 0] - scores[:, 1])
        return softmax(scores), margin, np.log1p(np.exp(-margin))

    for order in (0, 1):
        found = effects.measure_effects(retraining, partition, asked, order)
        base, before, loss_before = expected([], order)
        assert found.base == pytest.approx(before[:5], rel=1e-4)
        for row, rows in enumerate(removed):
            probabilities, margin, loss = expected(rows, order)
            if row == 2:
                assert found.unions[0] == pytest.approx((margin - before)[:5], abs=1e-5)
                continue
            assert found.shift[row] == pytest.approx(((probabilities - base) ** 2).sum(1)[:5], abs=1e-6)
            assert found.margin[row] == pytest.approx((margin - before)[:5], abs=1e-5)
            assert found.validation[row] == pytest.approx((loss - loss_before)[5:16].mean(), abs=1e-6)


def test_measured_effects_compare_retrainings_with_the_same_batch_order(tmp_path):
    data = ddm.datasets.load("digits", limit=120)
    network, recipe = ddm.networks.ConvNet(width=4, depth=1), ddm.Recipe(epochs=2, batch_size=32)
    target = ddm.train(network, data.train, recipe)
    partition = ddm.groups.partition.classwise(data.train)
    nothing = np.zeros((0, 10), dtype=bool)
    asked = EffectQuery(data.test[:6], data.validation[:9], np.array([4]), nothing)
    found = effects.measure_effects(Retraining(target, data.train, tmp_path, workers=1), partition, asked, 1)
    x, y = asked.test.batch()
    again = ddm.Recipe(epochs=2, batch_size=32, seed=1)
    base, without = (
        ddm.train(network, data.train, again, without=rows).outputs(x) for rows in (None, partition.rows(4))
    )
    assert found.shift[0] == pytest.approx(effects.shift(without, base).numpy(), rel=1e-4)
    change = effects.log_odds(without, y) - effects.log_odds(base, y)
    assert found.margin[0] == pytest.approx(change.numpy(), rel=1e-4, abs=1e-6)
    assert found.unions.shape == (0, 6)
