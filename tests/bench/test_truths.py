"""Stored truths give the figures of retraining without retraining, and files that do not fit are refused."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import assert_refused, refused

import ddm
from ddm import bench
from ddm.bench import truth_files
from ddm.bench.problem import Problem
from ddm.bench.problems import PROBLEMS, TABLES_AND_TEXTS, stored_setup
from ddm.bench.setup import Setup
from ddm.bench.truth_files import measure_truth, random_pairs
from ddm.bench.truths import StoredTruth
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.truth.effects import EffectQuery, measure_effects
from ddm.truth.figures import FIGURES, noise_ceilings, score_figures


def tiny_setup():
    setup = bench.preset("digits", scale="tiny")
    recipe = replace(setup.recipe, momentum=0.9, nesterov=True, warmup=1, clip_norm=1.0)
    return replace(setup, recipe=recipe, tests=20, validation=20, smoothing=0.1)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return Problem(tiny_setup(), tmp_path_factory.mktemp("work"), engine="serial")


@pytest.fixture(scope="module")
def path(problem, tmp_path_factory):
    path = tmp_path_factory.mktemp("truths") / "digits-tiny.safetensors"
    measure_truth(problem).save(path)
    return path


@pytest.fixture
def stored(problem, path, tmp_path):
    """The same problem with its stored truth, in another work folder."""
    return Problem(problem.setup, tmp_path, stored=StoredTruth.load(path))


# --- the same figures ---


@pytest.mark.usefixtures("no_retraining")
def test_a_stored_truth_gives_groups_and_effects_without_retraining(stored, path):
    assert len(stored.truth) == 2
    assert stored.truth[0].margin.shape == (len(stored.partition), 20)
    assert stored.partition is stored.stored.partition


def test_figures_from_half_precision_are_those_of_the_retrained_models(problem, stored):
    assert np.array_equal(stored.partition.groups, problem.partition.groups)
    assert stored.partition.names == problem.partition.names
    for mine, retrained in zip(stored.truth, problem.truth, strict=True):
        scale = np.abs(retrained.margin).mean()
        np.testing.assert_allclose(mine.margin, retrained.margin, atol=1e-2 * scale)
        np.testing.assert_allclose(mine.unions, retrained.unions, atol=1e-2 * np.abs(retrained.unions).mean())
    expected = score_figures(*problem.truth)
    assert score_figures(*stored.truth) == {name: pytest.approx(expected[name], abs=5e-3) for name in FIGURES}
    assert noise_ceilings(stored.truth)["rho"] == pytest.approx(noise_ceilings(problem.truth)["rho"], abs=5e-3)


def test_effects_of_stored_pairs_are_those_of_retraining_without_two_groups(problem, stored):
    truth = stored.stored
    assert (truth.pairs.sum(1) == 2).all()
    assert len(np.unique(truth.pairs, axis=0)) == len(truth.pairs) == 6
    query = EffectQuery(problem.test, problem.validation, np.arange(len(problem.partition)), truth.pairs)
    expected = measure_effects(problem.exact, problem.partition, query, order=1)
    np.testing.assert_allclose(truth.effects(query)[1].unions, expected.unions, atol=1e-2)


def test_a_removal_that_is_not_stored_is_refused(stored):
    everything_but_one = np.ones((1, len(stored.partition)), dtype=bool)
    everything_but_one[0, 0] = False
    query = replace(stored.effect_query, unions=everything_but_one)
    with refused("lacks a removal"):
        stored.stored.effects(query)
    with refused("other test samples"):
        stored.stored.effects(replace(stored.effect_query, test=stored.test[:5]))


def test_a_file_says_what_it_is_the_truth_of(problem, path):
    facts = StoredTruth.load(path).facts
    assert facts.setup["recipe"] == problem.setup.recipe.to_dict()
    assert "root" not in facts.setup
    assert facts.accuracy == problem.target.accuracy(problem.data.test)
    assert facts.target == problem.target.fingerprint()
    assert {"ddm", "torch", "numpy"} <= facts.versions.keys()


def test_pairs_are_fewer_if_there_are_few_groups_and_never_remove_all():
    assert random_pairs(2, 6, seed=0).shape == (0, 2)
    assert random_pairs(3, 6, seed=0).sum(1).tolist() == [2, 2, 2]


# --- the same target and data ---


def test_the_target_is_trained_again_and_another_one_is_warned_of(stored, path, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = stored.target
    truth = StoredTruth.load(path)
    assert truth.facts.target == target.fingerprint()
    with pytest.warns(UserWarning, match="another target"):
        truth.check_target(truth.logits[1, 0], target.task)


def test_other_data_and_other_setups_are_refused(stored, path, tmp_path):
    truth = StoredTruth.load(path)
    with refused("training samples", "--root"):
        truth.check_data({**stored.data_hashes, "training": "0"}, len(stored.train))
    with refused("training samples"):
        truth.check_data(stored.data_hashes, len(stored.train) + 1)
    with refused("another setup"):
        Problem(replace(stored.setup, clusters=2), tmp_path, stored=truth)


def test_a_changed_problem_keeps_the_truth_only_if_it_still_applies(stored):
    settings = replace(stored.setup.settings, bank=9)
    assert stored.with_changes(settings=settings).stored is stored.stored
    assert stored.with_changes(root="elsewhere").stored is stored.stored
    assert stored.with_changes(smoothing=0.0).stored is None
    assert stored.outcome_file("trak") != Problem(stored.setup, stored.work).outcome_file("trak")


# --- files that do not fit ---


def broken(name):
    """How to break a file: a function that changes its tensors and metadata."""

    def change(tensors, facts):
        if name in ("parents", "removed", "base", "changes"):
            tensors[name] = tensors[name][:-1]
        elif name == "groups":
            tensors["groups"][:] = 0
        elif name == "values":
            tensors["changes"][0, 0, 0, 0] = torch.nan
        elif name == "single precision":
            tensors["base"] = tensors["base"].float()
        elif name == "removals":
            tensors["removed"][1] = 1
        elif name == "classes of groups":
            tensors["parents"][0] = 99
        else:
            field, value = name
            facts[field] = value

    return change


@pytest.mark.parametrize(
    "what",
    [
        *("groups", "parents", "removed", "base", "changes"),
        *("values", "single precision", "removals", "classes of groups"),
        ("format", "another"),
        ("setup", {}),
        ("setup", {"unions": -1, "orders": 2}),
        ("setup", {"unions": 3, "orders": "2"}),
        ("names", ["a", "a"]),
        ("classes", None),
        ("tests", 10**6),
        ("accuracy", "high"),
        ("seconds", 0.0),
        ("unknown", 1),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_together_is_refused(what, path, tmp_path):
    tensors, facts = read_tensors(path), read_metadata(path)
    broken(what)(tensors, facts)
    write_tensors(tmp_path / "one.safetensors", tensors, facts)
    with refused("one.safetensors", "ddm bench truths"):
        StoredTruth.load(tmp_path / "one.safetensors")


def test_a_file_that_was_changed_is_refused(path, tmp_path):
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    (tmp_path / "one.safetensors").write_bytes(contents)
    with refused("has changed"):
        StoredTruth.load(tmp_path / "one.safetensors")


# --- the registry and the commands ---


def test_the_registry_has_thirteen_recipes_for_mnist_and_three_networks_for_cifar10():
    names = [name.split("-")[0] for name in PROBLEMS]
    assert (names.count("mnist"), names.count("cifar10")) == (13, 3)
    setups = [setup for name, (_, setup) in PROBLEMS.items() if name not in TABLES_AND_TEXTS]
    assert len({setup.training_key() for setup in setups}) == len(setups)
    for setup in setups:
        assert (setup.tests, setup.validation, setup.unions, setup.orders) == (300, 300, 6, 2)
        shape = (1, 14, 14) if setup.data == "mnist" else (3, 16, 16)
        ddm.networks.build(setup.model, shape, 10, **setup.options)


def test_every_file_of_the_repository_is_the_truth_of_the_problem_that_it_names():
    files = sorted((Path(__file__).parents[2] / "bench" / "truths").glob("*.safetensors"))
    assert files
    assert all(StoredTruth.load(path).fits(PROBLEMS[path.stem][1]) for path in files)


def test_the_files_of_a_dataset_may_lie_in_a_folder_of_its_name(tmp_path):
    (tmp_path / "mnist").mkdir()
    assert stored_setup("mnist-plain", str(tmp_path)).root == str(tmp_path / "mnist")
    assert stored_setup("cifar10-vit", str(tmp_path)).root == str(tmp_path)
    assert stored_setup("cifar10-vit", None).root is None
    with refused("mnist-plain", "mnist-momentum"):
        stored_setup("mnist", None)


def test_setups_without_label_smoothing_have_the_hashes_that_they_had_before_it():
    plain, smooth = Setup(), Setup(smoothing=0.1)
    assert "smoothing" not in plain.to_dict()
    assert len({setup.key() for setup in (plain, smooth)}) == 2
    assert len({setup.training_key() for setup in (plain, smooth)}) == 2
    with refused("smoothing"):
        Setup(smoothing=1.5)


def test_smoothed_labels_are_those_of_torchs_cross_entropy(tmp_path):
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    loss = Problem(Setup(smoothing=0.1), tmp_path).loss
    soft = 0.9 * torch.nn.functional.one_hot(labels, 3) + 0.1 / 3
    torch.testing.assert_close(loss(logits, labels), -(soft * logits.log_softmax(1)).sum(1).mean())


@pytest.mark.usefixtures("registered")
def test_the_command_writes_a_file_for_each_problem_and_skips_those_that_exist(command, tmp_path, monkeypatch):
    result = command("bench", "truths", "--out", "truths", "--engine", "serial", "--json")
    assert result.code == 0
    path = tmp_path / "truths" / "digits-tiny.safetensors"
    assert json.loads(result.out) == {"files": {"truths/digits-tiny.safetensors": path.stat().st_size}}
    assert StoredTruth.load(path).fits(tiny_setup())
    monkeypatch.setattr(truth_files, "measure_truth", None)
    assert command("bench", "truths", "--out", "truths", "--problem", "digits-tiny").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("registered", "no_retraining")
def test_recipes_compares_every_method_with_the_stored_truth(path, tmp_path, monkeypatch):
    monkeypatch.setattr(Problem, "training_seconds", 1.0)
    report = bench.run_stored("recipes", [], bench.Folders(path.parent, path.parent, None, tmp_path / "out"))
    (row,) = report["rows"]
    assert row["method"] == "digits-tiny"
    assert any("TRAK" in note and "cross-entropy" in note for note in report["notes"])  # the labels are smoothed
    for method in ("response", "ddm-response", "centroid", "ekfac", "retrain"):
        for figure in FIGURES:
            assert row[f"{method}_{figure}_low"] <= row[f"{method}_{figure}_high"]
        assert row[f"{method}_rho_share"] == pytest.approx(row[f"{method}_rho"] / row["ceiling_rho"])
    truth = Problem(tiny_setup(), tmp_path, stored=StoredTruth.load(path)).truth
    assert row["retrain_rho"] == score_figures(truth[1], truth[0])["rho"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["truths", "--problem", "mnist"], "mnist-plain"),
        (["truths", "--data", "mnist"], "--data"),
        (["truths", "--epochs", "3"], "--epochs"),
        (["recipes", "--problem", "mnist"], "mnist-plain"),
        (["recipes", "--truths", "nowhere"], "nowhere"),
        (["tables-and-texts", "--truths", "nowhere"], "nowhere"),
        (["tables-and-texts", "--data", "digits"], "--data"),
        (["recipes", "--clusters", "3"], "--clusters"),
        (["recipes", "--data", "digits", "--problem", "mnist-plain"], "--problem"),
        (["fidelity", "--problem", "mnist-plain"], "--problem"),
        (["fidelity", "--truths", "here"], "--truths"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments, word, command, tmp_path):
    assert_refused(command("bench", *arguments, "--out", "out"), word)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_refused(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    assert_refused(command("bench", "truths", "--out", "out"), "mine.txt")
