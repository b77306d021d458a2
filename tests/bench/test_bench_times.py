"""Benchmarks derive costs from times correctly, and time the work itself rather than the loading of cached results."""

import pytest

from ddm.bench import preset, scaling, speed, timing
from ddm.bench.problem import Problem


def test_a_target_that_already_exists_is_trained_once_more_to_time_it(tmp_path, monkeypatch):
    problem = Problem(preset("digits", scale="tiny"), tmp_path)
    problem.target  # noqa: B018 (trains it)
    trained, train = [], timing.train

    def recording_train(network, samples, *arguments, **options):
        trained.append(len(samples))
        assert "directory" not in options
        return train(network, samples, *arguments, **options)

    monkeypatch.setattr(timing, "train", recording_train)
    seconds = timing.training_seconds(Problem(problem.setup, tmp_path))
    assert seconds > 0
    assert trained[1:] == [len(problem.train)]
    assert timing.training_seconds(Problem(problem.setup, tmp_path)) == seconds  # cached
    assert trained.count(len(problem.train)) == 1


def test_speed_is_compared_with_retraining_without_each_group():
    row = {"offline": 10.0, "question": 5.0}
    speed._add_comparison(row, training=20.0, groups=30)
    assert row["offline in trainings"] == 0.5
    assert row["many"] == pytest.approx(10 + 1000 * 0.005)
    assert row["times faster"] == pytest.approx(30 * 20 / 15)


def test_the_cost_that_grows_with_the_number_of_samples_is_the_cost_per_question(monkeypatch):
    monkeypatch.setattr(speed, "_baseline_seconds", lambda problem, method, count: 10 + 2 * count * 0.1)
    row = speed._baseline_row(Problem(preset("digits", scale="tiny"), None), "trak")
    assert row["question"] == pytest.approx(100)
    assert row["offline"] == pytest.approx(10)


def test_the_exponent_of_a_power_law_is_recovered():
    rows = [{"symbol": "n", "n": n, "fit": 3 * n**0.7} for n in (10, 40, 200)]
    rows.append({"symbol": "K", "n": 10, "fit": 1e9})
    assert scaling._exponent(rows, "n", "fit") == pytest.approx(0.7)
