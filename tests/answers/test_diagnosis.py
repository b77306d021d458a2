"""The diagnosis: planted wrong labels are named first, and every number agrees with brute force."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from command_results import run_command
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import ddm
import ddm.runs.run

TRUE, WRONG, SHARE = 3, 8, 0.2
SMALL = "--option width=8 --option depth=2 --epochs 10 --lr 0.1 --momentum 0.9 --batch-size 32"
FIT = f"fit npz:digits.npz {SMALL} --clusters 5 --setting curvature=512 --setting bank=30 --engine serial".split()


@pytest.fixture
def here(command, monkeypatch, planted):
    """The command line, started in the folder that contains the run."""
    monkeypatch.chdir(planted[0])
    return command


def write_digits(path: Path, share: float) -> np.ndarray:
    """Write digits with a share of one class mislabelled as another; return the rows of these training samples."""
    random = np.random.default_rng(0)
    bunch = sklearn.datasets.load_digits()
    order = random.permutation(len(bunch.target))
    images, labels = bunch.images[order].astype(np.float32) / 16, bunch.target[order]
    train, validation, test = np.split(np.arange(len(order)), [1100, 1450])
    given = labels[train].copy()
    rows = np.flatnonzero(given == TRUE)
    planted = random.choice(rows, round(share * len(rows)), replace=False)
    given[planted] = WRONG
    arrays = {"x_train": images[train], "y_train": given}
    for name, part in (("val", validation), ("test", test)):
        arrays |= {f"x_{name}": images[part], f"y_{name}": labels[part]}
    np.savez(path, **arrays)
    return planted


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The folder of a run whose training set has planted wrong labels, and the rows of those samples."""
    folder = tmp_path_factory.mktemp("planted")
    rows = write_digits(folder / "digits.npz", SHARE)
    made = run_command(*FIT, "--out", "run", cwd=folder)
    assert made.code == 0, made.err
    return folder, rows


@pytest.fixture(scope="module")
def diagnosis(planted):
    datamodel, data = ddm.runs.run.open_run(
        planted[0] / "run", data=ddm.datasets.load(f"npz:{planted[0] / 'digits.npz'}")
    )
    return datamodel.diagnose(data.validation)


@pytest.fixture(scope="module")
def found(datamodel, digits):
    return datamodel.diagnose(digits.validation)


def held(folder: Path, group: str, rows: np.ndarray) -> int:
    """Number of these training samples that belong to a group of the run."""
    partition = ddm.load(folder / "run").partition
    return int(np.isin(partition.members(group), rows).sum())


def test_the_first_three_lines_name_the_groups_that_hold_most_planted_samples(here, planted):
    folder, rows = planted
    answer = here("diagnose", "run")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()[:3]
    names = ddm.load(folder / "run").partition.names
    named = [name for name in names if any(f"Group {name} looks mislabelled" in line for line in lines)]
    assert sum(held(folder, name, rows) for name in named) > len(rows) / 2
    worst = max(names, key=lambda name: held(folder, name, rows))
    assert lines[0].startswith(f"Group {worst} looks mislabelled:")
    assert f"labelled {WRONG} that look like {TRUE}." in lines[0]


def test_most_suspects_are_planted_samples(planted, diagnosis):
    _, rows = planted
    suspects = [suspect.row for suspect in diagnosis.suspects]
    assert np.isin(suspects[:10], rows).mean() > 0.5
    assert np.isin(rows, suspects).mean() > 0.5
    probabilities = [suspect.probability for suspect in diagnosis.suspects]
    assert probabilities == sorted(probabilities)
    named = {finding.group for finding in (*diagnosis.noisy, *diagnosis.harmful)}
    assert {suspect.group for suspect in diagnosis.suspects} <= named


def test_groups_of_clean_digits_are_not_called_mislabelled(tmp_path):
    write_digits(tmp_path / "digits.npz", 0)
    data = ddm.datasets.load(f"npz:{tmp_path / 'digits.npz'}")
    network = ddm.networks.ConvNet(data.train.shape, len(data.classes), width=8, depth=2)
    target = ddm.train(network, data.train, ddm.Recipe(epochs=10, lr=0.1, momentum=0.9, batch_size=32))
    datamodel = ddm.DistilledDatamodel.fit(target, data.train, clusters=5, curvature=512, bank=30)
    clean = datamodel.diagnose(data.validation)
    assert sum(finding.size for finding in clean.noisy) < 0.02 * len(data.train)
    assert len(clean.harmful) <= 0.1 * len(datamodel.partition)


def test_effects_are_those_of_attribution(datamodel, digits, found):
    for name in ("loss", "accuracy"):
        expected = datamodel.attribute(digits.validation, name)
        np.testing.assert_allclose(found.effects[name], expected.scores, atol=1e-9)
        assert getattr(found, name) == pytest.approx(expected.baseline[0])
    for name in ("precision", "recall", "f1"):
        expected = datamodel.attribute(digits.validation, f"class-{name}")
        np.testing.assert_allclose(found.effects[name], expected.matrix, atol=1e-9)
        np.testing.assert_allclose(getattr(found, name), expected.baseline)


def test_errors_are_counted_as_scikit_learn_counts_them(datamodel, digits, found):
    x, y = digits.validation.batch()
    predicted = datamodel.target.outputs(x).argmax(1)
    np.testing.assert_array_equal(found.counts, confusion_matrix(y, predicted, labels=range(10)))
    figures = precision_recall_fscore_support(y, predicted, labels=range(10), zero_division=0)
    for name, expected in zip(("precision", "recall", "f1"), figures, strict=False):
        np.testing.assert_allclose(getattr(found, name), expected)


def test_the_causes_of_each_kind_of_error_agree_with_brute_force(datamodel, digits, found):
    x, y = digits.validation.batch()
    predicted = datamodel.target.outputs(x).argmax(1)
    assert found.confusions
    counts = [confusion.count for confusion in found.confusions]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == (found.counts - np.diag(np.diag(found.counts))).max()
    for confusion in found.confusions[:3]:
        true, wrong = (digits.classes.index(name) for name in (confusion.true, confusion.predicted))
        rows = list(confusion.rows)
        assert rows == np.flatnonzero((y == true) & (predicted == wrong)).tolist()
        base = datamodel.target.outputs(x[rows]).softmax(1)[:, wrong].mean()
        assert len(confusion.causes) == len(datamodel.partition)
        assert [effect for _, effect in confusion.causes] == sorted(effect for _, effect in confusion.causes)
        for group, effect in (confusion.causes[0], confusion.causes[-1]):
            without = datamodel.counterfactual(group)(x[rows]).softmax(1)[:, wrong].mean()
            assert effect == pytest.approx(float((without - base).detach()), abs=1e-5)


def test_labels_are_judged_by_the_model_without_their_group(datamodel, digits, found):
    for group in (0, 11, len(datamodel.partition) - 1):
        x, y = digits.train.batch(datamodel.partition.rows(group))
        said = datamodel.counterfactual(group)(x).argmax(1)
        assert found.agreement[group] == pytest.approx(float((said == y).float().mean()))


def test_useless_groups_change_nothing_noticeable_and_are_neither_harmful_nor_mislabelled(found):
    assert found.useless
    for finding in found.useless:
        assert abs(finding.loss) < 0.01 * found.loss
        assert abs(finding.accuracy) < 0.005
    for finding in found.harmful:
        assert finding.loss < 0
    useless = {finding.group for finding in found.useless}
    assert not useless & {finding.group for finding in (*found.harmful, *found.noisy)}


def test_groups_of_classes_without_held_out_samples_are_not_called_mislabelled(datamodel, digits):
    some = digits.validation[np.flatnonzero(digits.validation.labels < 5)]
    assert {finding.label for finding in datamodel.diagnose(some).noisy} <= set("01234")


def stopped(datamodel, samples, names):
    """The same datamodel, as if the matching of some groups had been stopped."""
    return ddm.DistilledDatamodel(
        datamodel.target,
        datamodel.partition,
        replace(datamodel.synset, stopped=dict.fromkeys(names, "it stopped.")),
        datamodel.class_synset,
        datamodel.settings,
        datamodel.data,
        samples=samples,
    )


def test_a_group_whose_matching_was_stopped_is_left_out(digits, datamodel, synset_datamodel, refused):
    found = synset_datamodel.diagnose(digits.validation, digits.train)
    name = datamodel.partition.names[4]
    broken = stopped(datamodel, digits.train, [name]).diagnose(digits.validation)
    others = np.arange(len(broken.groups)) != 4
    for effects, whole in ((broken.effects[key], found.effects[key]) for key in found.effects):
        assert np.isnan(effects[4]).all()
        np.testing.assert_allclose(effects[others], whole[others], atol=1e-6)  # single precision and other batches
    assert np.isnan(broken.agreement[4])
    named = {finding.group for finding in (*broken.harmful, *broken.useless, *broken.noisy)}
    assert name not in named | {group for group, _ in broken.confusions[0].causes}
    assert broken.to_dict()["groups"][4]["effects"]["loss"] is None
    with refused("no group can be removed"):
        stopped(datamodel, digits.train, datamodel.partition.names).diagnose(digits.validation)


def test_a_loaded_datamodel_needs_the_training_set(datamodel, digits, refused, tmp_path, found):
    datamodel.save(tmp_path / "run")
    loaded = ddm.load(tmp_path / "run")
    with refused("training set", "train="):
        loaded.diagnose(digits.validation)
    with refused("another training set"):
        loaded.diagnose(digits.validation, train=digits.test)
    np.testing.assert_array_equal(loaded.diagnose(digits.validation, train=digits.train).agreement, found.agreement)


def test_groups_that_cut_across_classes_and_single_samples_are_diagnosed(target, digits):
    groups = np.arange(len(digits.train)) % 5
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition=groups, curvature=64, bank=8)
    mixed = datamodel.diagnose(digits.validation)
    assert mixed.effects["f1"].shape == (5, 10)
    assert all(finding.label is None for finding in (*mixed.harmful, *mixed.useless, *mixed.noisy))
    one = datamodel.diagnose(digits.validation[0])
    assert one.counts.sum() == 1
    json.dumps(one.to_dict(), allow_nan=False)


@pytest.mark.parametrize("asked", ["held-out samples", "training samples"])
def test_a_prediction_outside_the_classes_is_refused_and_the_message_says_what_to_do(digits, refused, asked):
    network = ddm.networks.ConvNet(digits.train.shape, 12, width=4, depth=1)
    target = ddm.train(network, digits.train, ddm.Recipe(epochs=1))
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition="class", curvature=64, bank=4)
    of_target, of_models, last = target.outputs, datamodel._clusters.outputs, 100 * torch.eye(12)[11]
    if asked == "held-out samples":
        target.outputs = lambda x: of_target(x) + last
    else:
        target.outputs = lambda x: of_target(x) - 100 * (torch.arange(12) > 9)
        datamodel._clusters.outputs = lambda removed, x: of_models(removed, x) + last
    with refused("class 11", "0 to 9", "12 outputs", "classes="):
        datamodel.diagnose(digits.validation)


def test_a_diagnosis_of_an_inaccurate_model_warns_against_its_label_checks(found):
    assert found.accuracy > 0.75
    weak = replace(found, accuracy=0.4)
    (said,) = set(weak.sentences()) - set(found.sentences())
    assert "right on only 40%" in said


def test_a_diagnosis_has_sentences_a_table_and_html(found, datamodel):
    sentences = found.sentences()
    assert sentences[-1] == datamodel.trust
    assert any(sentence.startswith("Most frequent error: ") for sentence in sentences)
    frame = found.to_dataframe()
    assert list(frame["group"]) == list(datamodel.partition.names)
    np.testing.assert_array_equal(frame["effect on f1 of 8"], found.effects["f1"][:, 8])
    strange = replace(found, noisy=(replace(found.useless[0], group="<b>"),))
    assert "Group &lt;b&gt; looks mislabelled" in strange._repr_html_()
    assert strange.sentences()[0].startswith("Group <b> looks mislabelled")


def test_json_is_one_document_with_the_audit(here, diagnosis):
    answer = here("diagnose", "run", "--json")
    assert answer.code == 0, answer.err
    assert answer.err == ""
    document = json.loads(answer.out)
    assert document.pop("audit") is None
    assert document == json.loads(json.dumps(diagnosis.to_dict()))
    assert np.sum(document["counts"]) == document["samples"] == 350
    assert document["accuracy"] == pytest.approx(np.trace(document["counts"]) / 350)
    assert document["sentences"][0].startswith("Group ")


@pytest.mark.parametrize(
    ("option", "word"), [("--split=nowhere", "split"), ("--data=digits", "--data"), ("--top=0", "top")]
)
def test_invalid_command_line_options_are_refused_with_one_sentence(here, option, word):
    answer = here("diagnose", "run", option)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("ddm: ")
    assert answer.err.count("\n") == 1
    assert word in answer.err
