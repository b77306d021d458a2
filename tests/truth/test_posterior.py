"""The posterior equals Gaussian conditioning of the model that its docstring states; its parameters are recovered."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from ddm.answers.intervals import LEVEL, draw_errors
from ddm.answers.objectives import Objective
from ddm.truth.posterior import GENERAL, Posterior, Spread, fit_spread

SPREAD = Spread(scale=0.8, group=3.0, order=1.5, base=0.7, together=0.2)
GROUPS = 6


def random_design(count, groups=GROUPS, orders=3, most=4, seed=0):
    """Different removals ``(count, groups)`` of up to ``most`` groups, in several batch orders."""
    generator, found = np.random.default_rng(seed), {}
    while len(found) < count:
        size = generator.integers(1, most + 1)
        row = np.isin(np.arange(groups), generator.permutation(groups)[:size])
        order = int(generator.integers(orders))
        found[row.tobytes(), order] = (row, order)
    rows, numbers = zip(*found.values(), strict=True)
    return np.array(rows), np.array(numbers)


SINGLES = (np.eye(GROUPS, dtype=bool), np.zeros(GROUPS, dtype=np.int64))
DESIGNS = {
    "singles": SINGLES,
    "one retraining": random_design(1),
    "unions of one order": random_design(8, orders=1),
    "three orders": random_design(15),
    "repeats": (np.vstack([SINGLES[0]] * 2), np.repeat([0, 1], GROUPS)),
}


@pytest.fixture(params=DESIGNS.values(), ids=DESIGNS)
def design(request):
    return request.param


QUESTIONS = {
    "groups": np.eye(GROUPS),
    "unions": random_design(5, seed=1)[0],
    "weights": np.array([[0.5, 0, 0, 0, 0, 0], [-1.0, 0, 0.25, 0, 0, 1.0]]),
    "nothing": np.zeros((1, GROUPS)),
}


class Chances:
    """The model of the docstring, written down by its independent variables: f_o(S) − f_o(∅) − s·ê(S) = A·v."""

    def __init__(self, spread, removals, orders):
        """``removals (M, K)`` in batch orders ``(M,)``."""
        names = sorted(set(orders.tolist()) - {GENERAL})
        different = {(tuple(row), order) for row, order in zip(removals.tolist(), orders.tolist(), strict=True)}
        chances = sorted(one for one in different if one[1] != GENERAL and any(one[0]))
        columns, variances = [], []
        for group in range(removals.shape[1]):
            columns.append(removals[:, group].astype(float))
            variances.append(spread.group)
            for name in names:
                columns.append(removals[:, group] * (orders == name))
                variances.append(spread.order)
        for name in names:
            columns.append((orders == name) & removals.any(1))
            variances.append(spread.base)
        for row, order in chances:
            columns.append((removals == row).all(1) & (orders == order))
            size = sum(map(abs, row))
            variances.append(1 + spread.together * max(size * (size - 1), 0))
        self.design, self.variances = np.stack(columns, 1).astype(float), np.array(variances)

    @property
    def covariance(self):
        return self.design @ np.diag(self.variances) @ self.design.T

    def draw(self, count, generator):
        """``count`` draws of the vector ``(count, M)``."""
        values = generator.standard_normal((count, len(self.variances))) * np.sqrt(self.variances)
        return values @ self.design.T


def condition(covariance, known):
    """Gains and covariance of the first entries, given the last ``known`` ones, from the inverse of the whole."""
    first = len(covariance) - known
    jitter = 1e-10 * np.diag(np.r_[np.ones(first), np.zeros(known)])  # a question may equal a retraining
    precision = np.linalg.inv(covariance + jitter)
    inside = np.linalg.inv(precision[:first, :first])
    return -inside @ precision[:first, first:], np.diag(inside)


# --- conditioning ---


@pytest.mark.parametrize("order", [0, 1, 7, GENERAL])
@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_gains_and_variances_are_those_of_conditioning_the_model(design, asked, order):
    removed, orders = design
    posterior = Posterior(removed, orders, SPREAD)
    gains, variances = posterior.gains(asked, order), posterior.variances(asked, order)
    for row, gain, variance in zip(asked, gains, variances, strict=True):
        numbers = np.concatenate([[order], orders])
        expected = condition(Chances(SPREAD, np.vstack([row, removed]), numbers).covariance, len(removed))
        np.testing.assert_allclose(gain, expected[0][0], atol=1e-7)
        np.testing.assert_allclose(variance, expected[1][0], atol=1e-7)


def test_the_covariance_is_that_of_draws_from_the_model():
    removed, orders = random_design(6)
    drawn = Chances(SPREAD, removed, orders).draw(200_000, np.random.default_rng(0))
    expected = SPREAD.covariance(removed, orders, removed, orders)
    deviations = np.sqrt(np.diag(expected))
    found = np.cov(drawn.T) / np.outer(deviations, deviations)
    np.testing.assert_allclose(found, expected / np.outer(deviations, deviations), atol=5 * np.sqrt(2 / 200_000))


def test_each_retraining_left_out_is_predicted_as_without_it(design):
    removed, orders = design
    residuals = np.random.default_rng(0).normal(size=len(removed))
    left, variances = Posterior(removed, orders, SPREAD).left_out()
    for number in range(len(removed)):
        others = np.arange(len(removed)) != number
        row = removed[number : number + 1]
        if others.any():
            rest = Posterior(removed[others], orders[others], SPREAD)
            predicted = (rest.gains(row, orders[number]) @ residuals[others])[0]
            variance = rest.variances(row, orders[number])[0]
        else:
            predicted, variance = 0.0, Chances(SPREAD, row, orders).covariance[0, 0]
        assert left[number] @ residuals == pytest.approx(residuals[number] - predicted, abs=1e-9)
        assert variances[number] == pytest.approx(variance, abs=1e-9)


def test_a_group_that_was_left_out_alone_in_the_same_run_has_its_true_effect(design):
    removed, orders = design
    posterior = Posterior(removed, orders, SPREAD)
    for number, (row, order) in enumerate(zip(removed, orders, strict=True)):
        np.testing.assert_allclose(posterior.gains(row[None], order)[0], np.eye(len(removed))[number], atol=1e-12)
        assert posterior.variances(row[None], order).tolist() == [0.0]


def test_a_retraining_in_another_order_does_not_settle_this_run():
    removed, orders = SINGLES
    posterior = Posterior(removed, orders + 1, SPREAD)
    variances = posterior.variances(removed)
    before = SPREAD.group + SPREAD.order + SPREAD.base + 1
    assert (variances > before - SPREAD.group).all()
    assert (variances < before).all()


def test_the_model_in_general_has_no_chance_of_one_run():
    removed, orders = SINGLES
    known = Posterior(removed, orders, SPREAD).variances(removed, GENERAL)
    assert (known > 0).all()
    assert (known < SPREAD.group).all()  # it never had the other variances
    in_run, in_general = (
        Posterior(np.vstack([removed] * 30), np.repeat(np.arange(1, 31), GROUPS), SPREAD).variances(removed, order)
        for order in (0, GENERAL)
    )
    assert (in_general < 0.1 * SPREAD.group).all()  # 30 orders settle it
    assert (in_run > SPREAD.order + SPREAD.base + 1).all()  # but say nothing about what is special to one more order


def test_retrainings_in_any_order_give_the_same_answer():
    removed, orders = random_design(15)
    residuals, turn = np.random.default_rng(0).normal(size=15), np.random.default_rng(1).permutation(15)
    one, other = Posterior(removed, orders, SPREAD), Posterior(removed[turn], orders[turn], SPREAD)
    asked = QUESTIONS["unions"]
    np.testing.assert_allclose(one.gains(asked) @ residuals, other.gains(asked) @ residuals[turn], rtol=1e-10)
    np.testing.assert_allclose(one.variances(asked), other.variances(asked), rtol=1e-10)


def test_a_removal_of_nothing_is_known_and_corrected_by_nothing(design):
    posterior = Posterior(*design, SPREAD)
    assert not posterior.gains(QUESTIONS["nothing"]).any()
    assert posterior.variances(QUESTIONS["nothing"]).tolist() == [0.0]


def test_a_weight_of_minus_zero_is_zero():
    removed, orders = SINGLES
    asked = -0.0 * np.ones((1, GROUPS))
    asked[0, 2] = 1.0
    np.testing.assert_allclose(Posterior(removed, orders, SPREAD).gains(asked), removed[2:3], atol=1e-12)


# --- the parameters ---


def simulate(spread, removed, orders, samples, seed=0, noise=1.0):
    """Changes and predictions ``(R, samples, 2)`` of retrainings by the model, with predicted effects of size 3."""
    generator, count = np.random.default_rng(seed), 2 * samples
    effects = 3 * generator.standard_normal((removed.shape[1], count))
    predicted = removed @ effects
    missed = Chances(spread, removed, orders).draw(count, generator).T
    changes = spread.scale * predicted + missed
    return (noise * values.reshape(len(removed), samples, 2) for values in (changes, predicted))


@pytest.fixture(scope="module")
def many():
    """A design of many retrainings: singles and unions of three batch orders."""
    return random_design(120, groups=20, most=5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.4])
def test_many_retrainings_recover_the_size_and_the_variances(many, scale):
    true = replace(Spread(scale, group=8.0, order=1.0, base=2.0, together=0.1))
    found = fit_spread(*many, *simulate(true, *many, 300))
    assert found.scale == pytest.approx(scale, abs=0.05)
    assert found.group == pytest.approx(true.group, rel=0.25)
    assert found.order == pytest.approx(true.order, rel=0.25)
    assert found.together == pytest.approx(true.together, rel=0.25)
    assert 0.5 * Spread().base < found.base < 2 * true.base  # three orders have only three base trainings


def test_one_batch_order_shows_the_sum_of_what_groups_miss_and_keeps_the_usual_ratio(many):
    removed = np.unique(many[0], axis=0)
    orders = np.zeros(len(removed), dtype=np.int64)
    true = replace(Spread(), group=8.0, order=4.0, together=0.1)
    found = fit_spread(removed, orders, *simulate(true, removed, orders, 300))
    assert found.group / found.order == pytest.approx(Spread().group / Spread().order)
    assert found.group + found.order == pytest.approx(12.0, rel=0.25)


def test_the_parameters_do_not_depend_on_the_unit_of_the_outputs(many):
    one, other = (fit_spread(*many, *simulate(SPREAD, *many, 50, noise=noise)) for noise in (1.0, 1e-4))
    for name, value in asdict(one).items():
        assert asdict(other)[name] == pytest.approx(value, rel=1e-3)


def test_one_retraining_leaves_the_parameters_near_their_usual_values():
    removed, orders = np.eye(5, dtype=bool)[:1], np.zeros(1, dtype=np.int64)
    found = fit_spread(removed, orders, *simulate(replace(Spread(), scale=0.3, order=50.0), removed, orders, 100))
    usual = asdict(Spread())
    for name, value in asdict(found).items():
        assert 0.5 < value / usual[name] < 2


def test_the_size_is_shrunk_less_the_more_retrainings_there_are(many):
    removed, orders = many
    true = replace(SPREAD, scale=0.3)
    changes, predicted = simulate(true, removed, orders, 50)
    sizes = [fit_spread(removed[:n], orders[:n], changes[:n], predicted[:n]).scale for n in (1, 4, 120)]
    assert 1 > sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] == pytest.approx(0.3, abs=0.05)


def test_the_order_of_retrainings_does_not_change_the_parameters(many):
    removed, orders = many
    changes, predicted = simulate(SPREAD, removed, orders, 20)
    turn = np.random.default_rng(0).permutation(len(removed))
    one = fit_spread(removed, orders, changes, predicted)
    other = fit_spread(removed[turn], orders[turn], changes[turn], predicted[turn])
    for name, value in asdict(one).items():
        assert asdict(other)[name] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("quiet", ["no sample changes", "most samples do not change", "everything is predicted"])
def test_outputs_that_do_not_change_leave_finite_parameters(many, quiet):
    removed, orders = (part[:10] for part in many)
    changes, predicted = simulate(SPREAD, removed, orders, 20)
    if quiet == "most samples do not change":
        changes[:, 3:] = predicted[:, 3:]
    else:
        changes = predicted = 0 * changes if quiet == "no sample changes" else predicted
    with np.errstate(all="raise"):
        found = fit_spread(removed, orders, changes, predicted)
    assert np.isfinite(list(asdict(found).values())).all()
    assert (found == Spread()) == (quiet != "most samples do not change")


def test_parameters_survive_saving_and_damaged_ones_are_refused():
    assert Spread.from_dict(SPREAD.to_dict() | {"later": 3}) == SPREAD
    for name in SPREAD.to_dict():
        for damage in (None, "a", True, np.inf, np.nan, 1e300, *([] if name == "scale" else [0, -1.0])):
            with pytest.raises((ValueError, TypeError)):
                Spread.from_dict(SPREAD.to_dict() | {name: damage})
        with pytest.raises(KeyError):
            Spread.from_dict({other: 1.0 for other in SPREAD.to_dict() if other != name})


# --- intervals ---

OUTPUTS = Objective("outputs", lambda outputs, baseline, labels: outputs.flatten(1), "each output", stacked=True)

ASKED = np.array([[1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 1]], dtype=bool)
"""A group and a union, which no retraining leaves out in the target's batch order."""


def covered(count, spread, estimate, seed):
    """The share of outputs whose true effect lies in the interval, after ``count`` retrainings by the model."""
    removed, orders = random_design(count + 2, groups=8, orders=2, most=3, seed=seed)
    asked = (removed[:, None] == ASKED).all(2).any(1) & (orders == 0)
    removed, orders = removed[~asked][:count], orders[~asked][:count]
    every, numbers = np.vstack([removed, ASKED]), np.concatenate([orders, [0, 0]])
    changes, predicted = simulate(spread, every, numbers, 20, seed)
    fitted = fit_spread(removed, orders, changes[:count], predicted[:count]) if estimate else spread
    posterior = Posterior(removed, orders, fitted)
    residuals = changes[:count] - fitted.scale * predicted[:count]
    left, variances = posterior.left_out()
    missed = torch.as_tensor(np.einsum("rs,snl->rnl", left, residuals))
    draws = draw_errors(missed, variances, posterior.effective)
    corrected = fitted.scale * predicted[count:] + np.einsum("mr,rnl->mnl", posterior.gains(ASKED), residuals)
    deviations = torch.as_tensor(np.sqrt(posterior.variances(ASKED)))
    base, labels = torch.zeros(20, 2), torch.zeros(20, dtype=torch.long)
    low, high = draws.ends(OUTPUTS, torch.as_tensor(corrected), deviations, base, labels)
    true = changes[count:].reshape(2, -1)
    return np.mean((low <= true) & (true <= high))


@pytest.mark.parametrize(
    ("count", "estimate", "worlds"),
    [(1, False, 1000), (9, False, 1000), (20, False, 1000), pytest.param(9, True, 200, marks=pytest.mark.slow)],
)
def test_intervals_hold_the_true_effect_as_often_as_they_say(count, estimate, worlds):
    """Within the binomial error of as many worlds: the outputs of one world count once."""
    shares = [covered(count, SPREAD, estimate, seed) for seed in range(20_000, 20_000 + worlds)]
    assert abs(np.mean(shares) - LEVEL) < 1.96 * np.sqrt(LEVEL * (1 - LEVEL) / worlds)


def test_retrainings_that_share_groups_are_worth_fewer_independent_errors():
    alone = Posterior(*SINGLES, replace(SPREAD, base=1e-9))
    assert alone.effective == pytest.approx(GROUPS)
    shared = Posterior(*random_design(12), SPREAD)
    assert 1 < shared.effective < 12
    assert Posterior(SINGLES[0][:1], SINGLES[1][:1], SPREAD).effective == pytest.approx(1)


def test_a_model_whose_deviation_is_unknown_has_no_interval_and_one_without_deviation_has_its_value():
    missed = torch.randn(12, 20, 2, generator=torch.Generator().manual_seed(0))
    draws = draw_errors(missed, np.ones(12), 12.0)
    logits, base = torch.zeros(3, 20, 2), torch.zeros(20, 2)
    deviations = torch.tensor([0.0, torch.nan, 1.0])
    low, high = draws.ends(OUTPUTS, logits, deviations, base, torch.zeros(20, dtype=torch.long))
    assert not low[0].any()
    assert not high[0].any()
    assert np.isnan(low[1]).all()
    assert np.isnan(high[1]).all()
    assert (low[2] < 0).all()
    np.testing.assert_allclose(low[2], -high[2], rtol=1e-6)  # the draws are symmetric, so the interval is
