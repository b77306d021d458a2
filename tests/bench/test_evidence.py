"""Stored evidence gives what retraining gives, files that do not fit are refused, and figures mean what they say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import assert_refused, refused

from ddm import bench
from ddm.answers.objectives import OBJECTIVES
from ddm.bench import evidence_files
from ddm.bench.evidence_case import Case
from ddm.bench.evidence_files import EVIDENCE_PROBLEMS, StoredEvidence, evidence_design, measure_evidence
from ddm.bench.problem import Problem
from ddm.bench.refined_changes import RefinedChanges, Trials, bootstrap_mean
from ddm.bench.truth_files import measure_truth
from ddm.bench.truths import StoredTruth
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.counterfactual.designs import leave_one_out
from ddm.groups.partition import Partition
from ddm.truth.evidence import Evidence
from ddm.truth.posterior import Spread
from ddm.truth.refined import RefinedModels
from ddm.truth.retraining import group_rows

REPOSITORY = Path(__file__).parents[2]


def tiny_setup():
    return replace(bench.preset("digits", scale="tiny"), tests=20, validation=20)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the truth and the evidence of a tiny problem, and the work folder of its retrainings."""
    folder = tmp_path_factory.mktemp("made")
    setup = tiny_setup()
    measure_truth(Problem(setup, folder / "work", "serial")).save(folder / "truths" / "digits-tiny.safetensors")
    truth = StoredTruth.load(folder / "truths" / "digits-tiny.safetensors")
    problem = Problem(setup, folder / "work", "serial", truth)
    measure_evidence(problem).save(folder / "evidence" / "digits-tiny.safetensors")
    return folder


@pytest.fixture(scope="module")
def case(made):
    truth = StoredTruth.load(made / "truths" / "digits-tiny.safetensors")
    stored = StoredEvidence.load(made / "evidence" / "digits-tiny.safetensors")
    return Case(Problem(tiny_setup(), made / "work", "serial", truth), stored)


# --- what is stored ---


def partition_of(groups, classes):
    parents = np.repeat(np.arange(classes), groups // classes)
    return Partition(np.arange(groups), tuple(map(str, range(groups))), parents, tuple(map(str, range(classes))))


@pytest.mark.parametrize(("groups", "small", "large"), [(30, 3, 5), (20, 2, 4)])
def test_the_design_has_unions_of_a_tenth_and_a_sixth_and_every_group_alone_in_another_order(groups, small, large):
    removed, orders = evidence_design(partition_of(groups, 10))
    sizes, own = removed.sum(1), orders == 0
    assert np.unique(sizes[own], return_counts=True)[1].tolist() == [groups, groups]
    assert set(sizes[own]) == {small, large}
    assert set(orders[~own]) == {2, 3, 4, 5, 6}
    assert (removed[~own & (sizes == 1)].sum(0) == 1).all()
    for order in range(2, 7):
        assert (removed[(orders == order) & (sizes > 1)].sum(0) == 1).all()


def test_unions_of_the_design_take_groups_from_different_classes():
    removed, _ = evidence_design(partition_of(30, 10))
    assert removed.reshape(len(removed), 10, 3).sum(2).max() == 1


def test_stored_changes_are_those_of_the_retrained_networks(case):
    stored, exact, x = case.evidence, case.problem.exact, case.problem.effect_query.inputs()
    for row in (0, len(stored.orders) - 1):
        order = int(stored.orders[row])
        asked = np.vstack([np.zeros_like(stored.removed[row]), stored.removed[row]])
        base, without = exact.outputs(group_rows(case.problem.partition, asked), order, x)
        torch.testing.assert_close(stored.changes[row], without - base, atol=2e-3, rtol=2e-3)
        place = stored.started.tolist().index(order)
        torch.testing.assert_close(stored.base[place], base, atol=2e-3, rtol=2e-3)


def broken(name):
    """How to break a file: a function that changes its tensors and metadata."""

    def change(tensors, facts):
        if name in ("removed", "orders", "started", "base", "changes"):
            tensors[name] = tensors[name][:-1]
        elif name == "nothing removed":
            tensors["removed"][0] = 0
        elif name == "everything removed":
            tensors["removed"][0] = 1
        elif name == "no mask":
            tensors["removed"][0, 0] = 2
        elif name == "order without a training on all groups":
            tensors["orders"][0] = 9
        elif name == "single precision":
            tensors["base"] = tensors["base"].float()
        elif name == "values":
            tensors["changes"][0, 0, 0] = torch.nan
        else:
            facts[name] = 1

    return change


@pytest.mark.parametrize(
    "what",
    [
        *("removed", "orders", "started", "base", "changes", "nothing removed", "everything removed", "no mask"),
        *("order without a training on all groups", "single precision", "values", "format", "truth"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(what, made, tmp_path):
    path = made / "evidence" / "digits-tiny.safetensors"
    tensors, facts = read_tensors(path), read_metadata(path)
    broken(what)(tensors, facts)
    write_tensors(tmp_path / "one.safetensors", tensors, facts)
    with refused("one.safetensors", "ddm bench truths --evidence"):
        StoredEvidence.load(tmp_path / "one.safetensors")


def test_evidence_of_another_problem_is_refused(case):
    with refused("not of the stored truth's problem"):
        Case(case.problem, replace(case.evidence, truth="another"))


def test_every_file_of_the_repository_fits_its_truth_and_has_the_design():
    for name in EVIDENCE_PROBLEMS:
        truth, stored = (
            kind.load(REPOSITORY / "bench" / folder / f"{name}.safetensors")
            for kind, folder in ((StoredTruth, "truths"), (StoredEvidence, "evidence"))
        )
        stored.check_fits(truth)
        removed, orders = evidence_design(truth.partition)
        assert np.array_equal(stored.removed, removed)
        assert np.array_equal(stored.orders, orders)


# --- figures ---


def test_no_retraining_leaves_the_prediction_as_it_is(case):
    assert torch.equal(case.refined(case.mixture(0)).of(leave_one_out(case.count), case.prior_of_singles),
                       case.prior_of_singles)  # fmt: skip


def test_all_single_groups_give_the_truth_of_the_same_run(case):
    found = case.same_run(case.designs(case.count)["singles"])
    assert found["rho"] == pytest.approx(1)
    assert found["oracle_fraction"] == pytest.approx(1)
    assert found["slope"] == pytest.approx(1)
    assert np.isnan(found["new_rho"])


def test_designs_have_as_many_retrainings_as_asked_for(case):
    for number in case.budgets:
        assert {len(trials) for trials in case.designs(number).values()} == {number}
        assert len(case.elsewhere(number)) == number
    mixed = case.mixture(9).removed.sum(1)
    assert (mixed == 1).sum() == 3
    assert set(case.elsewhere(case.count).orders) == {2, 3, 4, 5, 6}


def test_another_draw_has_the_same_single_groups_and_other_unions(case):
    first, second = case.mixture(6).removed, case.mixture(6, draw=1).removed
    single = first.sum(1) == 1
    assert np.array_equal(first[single], second[single])
    assert not np.array_equal(first[~single], second[~single])


def test_refined_changes_are_those_of_the_librarys_refined_models(case):
    """Equivalence: stored logits give the outputs that ``ddm refine`` gives from the networks themselves."""
    problem, trials = case.problem, case.mixture(6)
    x = problem.effect_query.inputs()
    refined = case.refined(trials)
    networks = Evidence.collect(problem.exact, problem.partition, trials.removed, trials.orders, "data")
    models = RefinedModels(case.datamodel.models, replace(networks, spread=refined.posterior.spread))
    singles = leave_one_out(case.count)
    expected = models.outputs(singles, x) - problem.target.outputs(x)
    torch.testing.assert_close(refined.of(singles, case.prior_of_singles), expected, atol=1e-2, rtol=1e-2)


def test_intervals_are_asked_only_about_retrainings_that_are_no_evidence(case):
    trials = case.mixture(6)
    hits = case.hits(trials)
    assert len(hits["singles"]["loss"]) == case.count - 2
    used = {row.tobytes() for row in trials.removed}
    assert len(hits["unions"]["loss"]) == sum(row.tobytes() not in used for row in case.unions.removed)
    assert all(((inside >= 0) & (inside <= 1)).all() for kind in hits.values() for inside in kind.values())


def test_intervals_hold_nine_tenths_of_what_the_model_itself_draws():
    """Closed form: changes drawn from the posterior's own model, with nothing predicted."""
    generator, groups, samples = np.random.default_rng(0), 20, 600
    removed = np.vstack([leave_one_out(groups)[:10], evidence_design(partition_of(groups, 10))[0][20:40]])
    every = np.vstack([removed, leave_one_out(groups)[10:]])
    orders = np.zeros(len(every), dtype=np.int64)
    covariance = Spread().covariance(every, orders, every, orders)
    drawn = np.linalg.cholesky(covariance) @ generator.standard_normal((len(every), samples * 3))
    changes = torch.as_tensor(drawn.reshape(len(every), samples, 3))
    trials = Trials(removed, orders[: len(removed)], changes[: len(removed)])
    asked = Trials(every[len(removed) :], orders[len(removed) :], changes[len(removed) :])
    nothing = torch.zeros(groups, samples, 3, dtype=torch.double)
    refined = RefinedChanges(trials, nothing, slice(300, None))
    first = replace(OBJECTIVES["logits"], measure=lambda outputs, base, y: outputs[..., 0], stacked=True)
    hits = refined.hits(first, asked, nothing[10:], torch.zeros(samples, 3, dtype=torch.double),
                        torch.zeros(300, dtype=torch.long), slice(0, 300))  # fmt: skip
    assert 0.86 < hits.mean() < 0.94


def test_the_bootstrap_draws_retrainings():
    assert bootstrap_mean(np.array([0.9, 0.9, 0.9])) == pytest.approx((0.9, 0.9, 0.9))
    mean, low, high = bootstrap_mean(np.array([0.0, 1.0] * 50))
    assert (mean, low < 0.42, high > 0.58) == (0.5, True, True)
    assert np.isnan(bootstrap_mean(np.array([]))).all()


def test_scores_of_other_methods_have_no_unit(case):
    trials, margin = case.mixture(9), case.true[1].margin
    assert case.log_odds_only(trials, 100 * margin) == pytest.approx(case.log_odds_only(trials, margin))
    assert case.log_odds_only(trials, margin)["rho"] > case.log_odds_only(trials, 0 * margin)["rho"]


# --- commands ---


@pytest.mark.usefixtures("registered")
def test_the_command_retrains_the_evidence_and_skips_files_that_exist(made, command, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "work").symlink_to(made / "work")
    arguments = ("bench", "truths", "--evidence", "--truths", str(made / "truths"), "--problem", "digits-tiny")
    result = command(*arguments, "--out", "out", "--engine", "serial", "--json")
    assert result.code == 0
    path = tmp_path / "out" / "digits-tiny.safetensors"
    assert json.loads(result.out) == {"files": {"out/digits-tiny.safetensors": path.stat().st_size}}
    assert path.read_bytes() == (made / "evidence" / "digits-tiny.safetensors").read_bytes()
    monkeypatch.setattr(evidence_files, "measure_evidence", None)
    assert command(*arguments, "--out", "out").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("registered", "no_retraining")
def test_the_benchmark_compares_numbers_and_designs_of_retrainings(made, tmp_path):
    folders = bench.Folders(made / "truths", made / "evidence", None, tmp_path / "out")
    report = bench.run_stored("evidence", [], folders, engine="serial")
    (row,) = report["rows"]
    tables = report["tables"]
    assert {"unrefined", "mixture", "singles", "unions", "larger unions", "unions, no prior"} == {
        row["design"] for row in tables["same run"]
    }
    assert {"response_rho", "none_rho", "trak_rho", "ekfac_rho"} <= tables["priors"][0].keys()
    all_singles = [one for one in tables["same run"] if one["design"] == "singles" and one["R"] == row["groups"]]
    assert [one["rho"] for one in all_singles] == pytest.approx([1])
    assert row["unrefined_rho"] == tables["same run"][0]["rho"] == pytest.approx(tables["priors"][0]["response_rho"])
    assert 0 < row["question_before"] < row["question_after"]
    assert all(0 <= row["log-odds_low"] <= row["log-odds_high"] <= 1 for row in tables["intervals"])
    page = (tmp_path / "out" / "evidence.md").read_text(encoding="utf-8")
    assert "## Other runs" in page
    assert (tmp_path / "out" / "evidence.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["evidence", "--problem", "mnist"], "mnist-plain"),
        (["evidence", "--evidence-files", "nowhere"], "nowhere"),
        (["evidence", "--data", "mnist"], "--data"),
        (["recipes", "--evidence-files", "here"], "--evidence-files"),
        (["truths", "--evidence", "--problem", "mnist"], "mnist-plain"),
        (["truths", "--evidence", "--epochs", "3"], "--epochs"),
        (["fidelity", "--evidence"], "--evidence"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments, word, command, tmp_path):
    assert_refused(command("bench", *arguments, "--out", "out"), word)
    assert not (tmp_path / "out").exists()
