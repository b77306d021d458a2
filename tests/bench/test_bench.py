"""Every benchmark on a tiny problem; a benchmark that is killed and resumed gives the same result."""

import json
from dataclasses import replace

import numpy as np
import pytest
from refusals import assert_refused
from sklearn.metrics import roc_auc_score

import ddm
from ddm import bench
from ddm.bench import located, noise, removal, unlearning
from ddm.bench.methods import TITLES, run_method, settings_of
from ddm.bench.outcome import Outcome
from ddm.bench.output import Report, format_cell
from ddm.bench.problem import NO_ROWS, Problem, with_noise
from ddm.truth.effects import Effects
from ddm.truth.figures import FIGURES

COSTS = ("seconds", "trainings", "query_ms", "seconds of one training", "many", "times faster", "question", "offline")
COSTS += ("offline in trainings", "beyond")
"""Keys of times and costs, which differ between two runs with the same results."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def problem(out):
    return Problem(bench.preset("digits", scale="tiny"), out / "work")


def without_costs(value):
    if isinstance(value, dict):
        return {key: without_costs(part) for key, part in value.items() if key not in COSTS}
    return [without_costs(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("method", ["ddm-response", "ddm-private", "ddm", "ddm-match", "ddm-paper"])
def test_a_synset_is_always_scored_alone(problem, method):
    settings = settings_of(problem, method)
    assert settings.synset is not False
    assert settings.keep == 0 or settings.matching != "response"


@pytest.mark.slow
@pytest.mark.parametrize("name", bench.BENCHES)
def test_every_benchmark_writes_its_results_and_repeats_them(name, out):
    report = bench.run(name, bench.preset("digits", scale="tiny"), out, "ddm bench")
    assert json.loads((out / f"{name}.json").read_text()) == json.loads(json.dumps(report, allow_nan=False))
    page = (out / f"{name}.md").read_text()
    assert all(str(row["title"]) in page for row in report["rows"])
    assert len({row["method"] for row in report["rows"]}) == len(report["rows"])
    again = bench.run(name, bench.preset("digits", scale="tiny"), out, "ddm bench")
    assert without_costs(again) == without_costs(report)


@pytest.mark.slow
def test_fidelity_has_a_row_per_method_with_every_figure(out):
    report = bench.run("fidelity", bench.preset("digits", scale="tiny"), out)
    rows = {row["method"]: row for row in report["rows"]}
    assert set(rows) == set(TITLES) - {"ddm-sequence"}
    for row in rows.values():
        for figure in FIGURES:
            assert np.isfinite(row[figure])
            assert row[f"{figure}_low"] <= row[f"{figure}_high"]
            assert np.isfinite(row[f"retrain_{figure}"])
            assert np.isfinite(row[f"other_{figure}"])
        assert row["ceiling_rho"] == report["reference"]["ceiling_rho"]
        assert row["seconds"] > 0
        assert row["bytes"] >= 0
    assert rows["retrain"]["rho"] == rows["ddm"]["retrain_rho"]


@pytest.mark.slow
def test_privacy_has_a_row_per_kind_of_synset_with_every_measure(out):
    report = bench.run("privacy", bench.preset("digits", scale="tiny"), out)
    rows = {row["method"]: row for row in report["rows"]}
    assert {"forward", "reverse", "reverse-noise", "response", "private", "pulls", "model"} == set(rows)
    for name in ("forward", "reverse", "reverse-noise", "response", "private"):
        row = rows[name]
        assert 0 <= row["alone_auc"] <= 1
        assert row["adds_auc"] == pytest.approx(row["both_auc"] - rows["model"]["both_auc"])
        assert row["member_1"] >= 0
        assert "rebuilt_normal_ssim" in row
    assert rows["reverse"]["start_found"] == rows["forward"]["start_found"] == 1  # after only two steps of matching
    assert rows["reverse"]["pixels_nearer"] == 1
    assert rows["response"]["pixels_nearer"] == rows["reverse-noise"]["pixels_nearer"] == 0
    assert rows["pulls"]["member_1"] == 1  # the gradient of a single sample is most similar to itself
    assert (out / "privacy.png").stat().st_size > 0


def test_the_row_of_a_method_that_cannot_run_gives_the_reason(problem, tmp_path, monkeypatch):
    def refuse(request):
        raise ddm.baselines.CannotRun("it cannot.")

    monkeypatch.setitem(ddm.baselines.BASELINES, "tracin", refuse)
    outcome = run_method(problem, "tracin")
    outcome.save(tmp_path / "one.safetensors")
    assert Outcome.load(tmp_path / "one.safetensors") == outcome
    assert bench.fidelity.method_row(problem, "tracin", outcome)["reason"] == "it cannot."


def test_true_effects_locate_the_best_group_and_random_groups_gain_nothing():
    rng = np.random.default_rng(0)
    true = Effects(rng.random((5, 40)), rng.normal(size=(5, 40)), rng.normal(size=5), np.ones((2, 40)), np.zeros(40))
    assert all(located.located_distances(true, true)[f"dist_{i}_gained"] == pytest.approx(1) for i in (1, 2, 3))
    assert all(located.random_distances(true)[f"dist_{i}_gained"] == pytest.approx(0) for i in (1, 2, 3))
    assert located.best_distances(true)["dist_1"] == pytest.approx(100 * true.shift.max(0).mean())
    loss = np.log1p(np.exp(-true.margin))
    assert located.best_distances(true)["dist_2"] == pytest.approx(loss.max(0).mean())


def test_data_are_removed_in_the_order_of_groups_and_to_the_exact_count(problem):
    order = np.arange(len(problem.partition))[::-1]
    rows = removal.first_rows(problem, order, 0.35)
    assert len(rows) == len(set(rows)) == round(0.35 * len(problem.train))
    sizes = problem.partition.sizes[order]
    whole = order[np.cumsum(sizes) <= len(rows)]
    assert set(problem.rows_of(whole)) <= set(rows)
    assert set(removal.first_rows(problem, order, 0.1)) <= set(rows)
    assert removal.least_useful_first(np.array([0.2, -0.3, 0.1])).tolist() == [1, 2, 0]


def test_removing_nothing_gives_the_targets_own_accuracy(problem):
    table = removal.accuracies(problem, {"one": {"10 %": removal.random_rows(problem, 0.1)}}, [0])
    assert table["one"]["0 %"] == pytest.approx(100 * problem.target.accuracy(problem.data.test))
    assert len(NO_ROWS) == 0


def test_noise_has_the_given_norm_and_covers_whole_groups(problem):
    samples = ddm.Samples.from_arrays(np.full((6, 1, 20, 20), 0.5) + np.eye(20) * 0.1, np.arange(6) % 2)
    noisy = with_noise(samples, np.array([1, 4]), 0.1, seed=0)
    change = (noisy.raw - samples.raw).flatten(1).square().mean(1).sqrt()
    assert change.tolist() == pytest.approx([0, 0.1, 0, 0, 0.1, 0], abs=1e-6)
    changed = problem.with_changes(noise=0.1)
    differ = (changed.train.raw != problem.train.raw).flatten(1).any(1).numpy()
    assert (differ == changed.noisy_groups[problem.partition.groups]).all()
    assert 0.2 <= differ.mean() < 0.45
    assert changed.target.fingerprint() != problem.target.fingerprint()


def test_detection_auc_is_one_if_removing_noisy_groups_lowers_the_loss_most():
    is_noisy, effect = np.array([True, False, True, False]), np.array([-0.3, 0.1, -0.2, 0.0])
    assert noise.detection_auc(is_noisy, effect) == 1.0
    assert noise.detection_auc(is_noisy, -effect) == 0.0
    assert noise.detection_auc(is_noisy, effect) == roc_auc_score(is_noisy, -effect)


def test_klom_of_exact_unlearning_is_about_one_over_the_number_of_models():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 30, 4000))
    assert unlearning.klom(one, other) < 2 / 30
    assert unlearning.klom(one + 2.0, other) == pytest.approx(2.0, rel=0.15)


def test_another_partition_reuses_the_target_but_not_the_scores(problem):
    other = problem.with_changes(partition="sequence")
    assert other.target_folder == problem.target_folder
    assert other.outcome_file("ddm") != problem.outcome_file("ddm")
    assert problem.with_changes(root="elsewhere").outcome_file("ddm") == problem.outcome_file("ddm")
    assert replace(problem.setup, recipe=ddm.Recipe(epochs=3)).training_key() != problem.setup.training_key()


def test_tables_show_three_digits_and_the_papers_numbers():
    report = Report(
        "x", "X", [{"method": "a", "title": "A", "n": 0.123456}], {"title": "method", "n": "n"}, paper={"a": 3}
    )
    assert report.table() == ["| method | n | the paper |", "|---|---|---|", "| A | 0.123 | 3 |"]
    assert [format_cell(value) for value in (None, 1234567, 1234.5, "a|b")] == ["–", "1,234,567", "1,234", "a\\|b"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "fidelity"),
        (["fidelity", "--seeds", "1"], "batch orders"),
        (["fidelity", "--scale", "huge"], "paper"),
        (["fidelity", "--data", "nowhere"], "digits"),
        (["fidelity", "--clusters", "0"], "clusters"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(arguments, word, command, tmp_path):
    assert_refused(command("bench", *arguments, "--out", "out"), word)
    assert not list(tmp_path.rglob("*.json"))
