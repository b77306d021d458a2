"""What benchmarks make of times, and that they time the work and not the reading of what was kept."""

import pytest

from ddm.bench import preset, scaling, speed, timing
from ddm.bench.problem import Problem


def test_a_target_that_is_there_already_is_trained_again_to_be_timed(tmp_path, monkeypatch):
    problem = Problem(preset("digits", scale="tiny"), tmp_path)
    problem.target  # noqa: B018 (trains it)
    trained, train = [], timing.train

    def noted(network, samples, *arguments, **options):
        trained.append(len(samples))
        assert "directory" not in options
        return train(network, samples, *arguments, **options)

    monkeypatch.setattr(timing, "train", noted)
    seconds = timing.training(Problem(problem.setup, tmp_path))
    assert seconds > 0
    assert trained[1:] == [len(problem.train)]
    assert timing.training(Problem(problem.setup, tmp_path)) == seconds  # kept
    assert trained.count(len(problem.train)) == 1


def test_answers_are_compared_with_retraining_for_all_groups():
    row = {"offline": 10.0, "question": 5.0}
    speed._compared(row, training=20.0, groups=30)
    assert row["offline in trainings"] == 0.5
    assert row["many"] == pytest.approx(10 + 1000 * 0.005)
    assert row["times faster"] == pytest.approx(30 * 20 / 15)


def test_what_grows_with_the_samples_asked_about_is_the_cost_of_a_question(monkeypatch):
    monkeypatch.setattr(speed, "_asked", lambda problem, method, count: 10 + 2 * count * 0.1)
    row = speed._other(Problem(preset("digits", scale="tiny"), None), "trak")
    assert row["question"] == pytest.approx(100)
    assert row["offline"] == pytest.approx(10)


def test_an_exponent_is_the_slope_between_logarithms():
    rows = [{"symbol": "n", "n": n, "fit": 3 * n**0.7} for n in (10, 40, 200)]
    rows.append({"symbol": "K", "n": 10, "fit": 1e9})
    assert scaling._exponent(rows, "n", "fit") == pytest.approx(0.7)
