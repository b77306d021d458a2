"""The benchmarks ``matching``, ``transfer``, ``architectures`` and ``initialisations`` on a tiny problem."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ddm
import ddm.bench.transfer as transfer
from ddm.bench import preset
from ddm.bench.classwise import architectures, initialisations
from ddm.bench.matching import finetune_on_synsets
from ddm.bench.matching import run as matching
from ddm.bench.problem import Problem

BENCHES = {
    "matching": matching,
    "transfer": transfer.run,
    "architectures": architectures,
    "initialisations": initialisations,
}


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return Problem(preset("digits", scale="tiny"), tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def reports(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # after two steps of matching some synsets point the wrong way
        return {name: bench(problem) for name, bench in BENCHES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_rows_have_a_title_and_a_cost(name, reports):
    report = reports[name]
    assert report.name == name
    for row in json.loads(json.dumps(report.rows)):
        assert {"method", "title", "seconds", "trainings"} <= row.keys()
        assert set(report.columns) & row.keys()
    assert set(report.paper) <= {row["method"] for row in report.rows}
    assert report.table()


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_a_second_run_gives_the_same_rows_and_trains_nothing(name, reports, problem, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("something was trained again")

    monkeypatch.setattr("ddm.truth.retraining._Retrain.__call__", refuse)
    monkeypatch.setattr("ddm.bench.transfer.train_student", refuse)
    monkeypatch.setattr("ddm.bench.matching._ComputeRow.__call__", refuse)
    before = {path: path.stat().st_mtime_ns for path in problem.work.rglob("*.safetensors")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = BENCHES[name](Problem(problem.setup, problem.work))
    assert again.rows == reports[name].rows
    assert {path: path.stat().st_mtime_ns for path in problem.work.rglob("*.safetensors")} == before


@pytest.mark.slow
def test_unlearning_everything_lowers_accuracy_and_retraining_without_a_class_forgets_it(reports):
    rows = {row["method"]: row for row in reports["matching"].rows}
    assert rows["ddm"]["accuracy_0"] < rows["normal"]["accuracy_tau"]
    assert rows["ddm"]["accuracy_tau"] == rows["normal"]["accuracy_tau"]
    assert rows["ddm-match"]["accuracy_0"] == rows["normal"]["accuracy_0"]
    assert rows["retrain"]["class_once"] == 0


def test_fine_tuning_with_the_librarys_steps_gives_the_librarys_counterfactual(target, digits):
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, clusters=2, matching="reverse", steps=3)
    synset, target = datamodel.synset, datamodel.target
    groups = torch.tensor([0, 2])
    ((_, theta),) = finetune_on_synsets(
        target, target.theta, target.fixed, synset, groups, synset.step_sizes[groups], [1]
    )
    removed = np.isin(np.arange(len(synset)), groups.numpy())[None]
    torch.testing.assert_close(theta, datamodel._clusters.parameters(removed)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["architectures", "initialisations"])
def test_every_network_agrees_with_itself_and_has_a_panel_in_the_figure(name, reports, tmp_path):
    report = reports[name]
    for row in report.rows:
        assert row[f"rho_{row['method']}"] == pytest.approx(1)
        assert len(row["W"]) == len(row["exact"]) == len(row["classes"]) == 10
        assert row["top"] == row["classes"][int(np.argmax(row["W"]))]
        assert min(row["exact"]) >= 0
        assert any(row["W"])
    assert len({tuple(row["exact"]) for row in report.rows}) == len(report.rows)
    assert len(report.figure.axes) == len(report.rows)
    report.figure.savefig(tmp_path / "figure.png")


@pytest.mark.slow
def test_data_are_removed_in_the_order_of_the_effects_and_to_the_exact_count(reports, problem):
    study = transfer.TeacherStudy(problem)
    groups = study.groups()
    effects = {"ddm": {"effects": list(range(len(groups), 0, -1))}}
    rows = transfer.removed_rows(study, effects, "ddm", 30, 0)
    assert len(rows) == len(set(rows)) == round(0.3 * len(problem.train))
    last = groups[-1]
    assert set(last[: len(rows)]) <= set(rows)


def test_the_undistillable_loss_rewards_predictions_unlike_the_normal_network():
    softened = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0])
    own = (logits / 2).softmax(1)
    apart = (own * (own / softened[labels]).log()).sum(1).mean()
    loss = transfer.Undistillable(softened, weight=0.3, temperature=2.0)
    assert float(loss(logits, labels)) == pytest.approx(float(F.cross_entropy(logits, labels) - 0.3 * 4 * apart))
    assert float(loss(logits, F.one_hot(labels, 3).float())) == pytest.approx(float(loss(logits, labels)))
