"""The figures of fidelity for random and perfect predictions and for ties, their intervals, and the noise ceiling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from ddm.truth.effects import Effects
from ddm.truth.figures import (
    FIGURES,
    estimate_figures,
    mean_spearman,
    noise_ceilings,
    oracle_fraction,
    score_figures,
    slope,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def effects(values):
    """Effects of every kind, all from the same values ``(K, m)``."""
    return Effects(np.abs(values), values, values[:, 0], values, values[0])


def margins(values):
    """Effects on the log-odds alone ``(K, m)``: only these have intervals to compute."""
    return Effects(np.zeros((1, 1)), values, np.zeros(1), np.zeros((0, 1)), values[0])


# --- oracle_fraction ---


def test_the_true_effects_score_an_oracle_fraction_of_one():
    true = np.abs(normal(12, 30))
    assert oracle_fraction(true, true) == 1
    assert oracle_fraction(np.exp(5 * true), true) == 1  # only the order of the predictions matters


def test_the_worst_groups_score_below_chance():
    true = np.abs(normal(12, 30))
    expected = (true.min(0).mean() - true.mean()) / (true.max(0).mean() - true.mean())
    assert oracle_fraction(-true, true) == pytest.approx(expected)
    assert expected < 0


def test_random_groups_score_zero_on_average():
    true = np.abs(normal(8, 20)) ** 2
    draws = [oracle_fraction(normal(8, 20, seed=seed), true) for seed in range(1, 801)]
    assert abs(np.mean(draws)) < 4 * np.std(draws) / math.sqrt(len(draws))
    assert np.std(draws) > 0.05


def test_locating_the_best_group_for_half_of_the_samples_scores_in_between():
    true = np.zeros((4, 2))
    true[1] = 1
    found = true.copy()
    found[0, 1] = 2  # right for one sample, a group without effect for the other
    assert oracle_fraction(found, true) == pytest.approx((0.5 - 0.25) / (1 - 0.25))


@given(value=st.floats(1e-6, 1), groups=st.integers(1, 12), samples=st.integers(1, 12))
def test_the_oracle_fraction_is_undefined_if_all_groups_have_the_same_effect(value, groups, samples):
    assert math.isnan(oracle_fraction(normal(groups, samples), np.full((groups, samples), value)))


# --- mean_spearman ---


def test_mean_spearman_agrees_with_scipy_with_ties():
    random = np.random.default_rng(0)
    found, true = random.integers(0, 4, (2, 15, 9)).astype(float)
    expected = np.mean([spearmanr(found[:, i], true[:, i])[0] for i in range(9)])
    assert mean_spearman(found, true) == pytest.approx(expected)


def test_mean_spearman_depends_on_the_order_only():
    found, true = normal(2, 20, 5)
    assert mean_spearman(np.exp(found), 7 + 3 * true) == pytest.approx(mean_spearman(found, true))
    assert mean_spearman(-found, true) == pytest.approx(-mean_spearman(found, true))
    assert mean_spearman(true, true) == pytest.approx(1)


def test_constant_predictions_have_no_rank_correlation():
    true = normal(10, 4)
    assert mean_spearman(np.zeros((10, 4)), true) == 0
    half = true.copy()
    half[:, :2] = 3
    assert mean_spearman(half, true) == pytest.approx(0.5)
    assert math.isnan(mean_spearman(true[:1], true[:1]))


# --- slope ---


@pytest.mark.parametrize("size", [0.25, 1, 3])
def test_noise_of_retraining_does_not_change_the_slope(size):
    truth, noise = normal(2, 200, 50)
    assert slope(truth / size, truth) == pytest.approx(size)
    assert slope(truth / size, truth + noise) == pytest.approx(size, rel=0.05)


def test_the_slope_is_undefined_if_all_predictions_are_zero():
    assert math.isnan(slope(np.zeros((3, 2)), normal(3, 2)))


# --- all figures with intervals ---


def test_every_figure_compares_its_own_effects():
    true = Effects(np.abs(normal(9, 5)), normal(9, 5, seed=1), normal(9, seed=2), normal(7, 5, seed=3), normal(5))
    found = Effects(true.shift, -true.margin, true.validation, -true.unions, true.base)
    expected = {"oracle_fraction": 1, "rho": -1, "rho_global": 1, "lds": -1, "slope": -1}
    assert score_figures(found, true) == pytest.approx(expected)
    assert {name: figure.value for name, figure in estimate_figures(found, true).items()} == pytest.approx(expected)
    assert set(expected) == set(FIGURES)


def test_intervals_are_seeded_and_lie_around_the_value():
    true = effects(normal(20, 30))
    found = effects(true.margin + 2 * normal(20, 30, seed=1))
    figures = estimate_figures(found, true, seed=3)
    assert figures == estimate_figures(found, true, seed=3)
    assert figures != estimate_figures(found, true, seed=4)
    for figure in figures.values():
        assert figure.low < figure.value < figure.high


def test_intervals_cover_the_true_correlation_about_as_often_as_they_say():
    r = 0.6
    population = 6 / np.pi * np.arcsin(r / 2)  # Spearman's correlation of two normal variables
    covered = 0
    for seed in range(20):
        true, noise = normal(2, 40, 1, seed=seed)
        figure = estimate_figures(margins(r * true + math.sqrt(1 - r * r) * noise), margins(true))["rho"]
        covered += figure.low <= population <= figure.high
    assert covered >= 16


def test_an_interval_narrows_with_more_groups_and_samples():
    def width(groups, samples):
        true, noise = normal(2, groups, samples)
        figure = estimate_figures(margins(true + 2 * noise), margins(true))["rho"]
        return figure.high - figure.low

    assert width(120, 1) < 0.6 * width(12, 1)
    assert width(12, 40) < 0.6 * width(12, 1)


def test_figures_of_unions_are_undefined_without_unions():
    true = Effects(normal(3, 4), normal(3, 4), normal(3), np.zeros((0, 4)), normal(4))
    figure = estimate_figures(true, true)["lds"]
    assert all(math.isnan(value) for value in (figure.value, figure.low, figure.high))


# --- ceilings ---


@pytest.mark.parametrize("orders", [2, 4])
@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_the_noise_free_effect_scores_the_ceiling(orders, noise):
    truth = normal(1500, 4)
    copies = [effects(truth + noise * normal(1500, 4, seed=1 + order)) for order in range(orders)]
    ceiling = noise_ceilings(copies)
    scores = score_figures(effects(truth), copies[0])
    assert set(ceiling) == {"rho", "rho_global", "lds"}
    for name, value in ceiling.items():
        assert value == pytest.approx(scores[name], abs=0.05)
    # a noisy copy scores only the square of the ceiling
    assert score_figures(copies[1], copies[0])["rho"] == pytest.approx(ceiling["rho"] ** 2, abs=0.05)


def test_the_ceiling_is_zero_if_retrainings_contradict_each_other():
    true = normal(10, 4)
    assert noise_ceilings([effects(true), effects(-true)]) == {"rho": 0, "rho_global": 0, "lds": 0}


def test_the_ceiling_is_undefined_for_a_single_retraining():
    assert all(math.isnan(value) for value in noise_ceilings([effects(normal(10, 4))]).values())
