"""The run directory: a saved datamodel loads unchanged, and files that do not belong together are refused."""

import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from manifests import change_manifest
from torch import nn
from torch.nn import functional as F

import ddm
from ddm import DistilledDatamodel, Recipe
from ddm.compute.files import write_json
from ddm.runs import manifest


class Killed(BaseException):
    """Simulates a kill: a ``BaseException``, so no handler of ``Exception`` catches it."""


RUN_FILES = (
    "manifest.json",
    "config.json",
    "partition.safetensors",
    "synset.safetensors",
    "synset-class.safetensors",
    "responses.safetensors",
    "trajectory/00000.safetensors",
    "trajectory/00003.safetensors",
    "trajectory/00006.safetensors",
)


@pytest.fixture(scope="module")
def saved(datamodel, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "digits"
    datamodel.save(run)
    return run


@pytest.fixture
def run(saved, tmp_path):
    """A copy of a run, which a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def small(digits, network, loss=F.cross_entropy, **options):
    """A datamodel of another network, fitted with the cheapest settings."""
    data = digits.train[:60]
    target = ddm.train(network, data, Recipe(epochs=2, batch_size=20, seed=1), loss=loss)
    return DistilledDatamodel.fit(target, data, **{"partition": "class", "curvature": 64, "bank": 8} | options)


def own(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_answers(one, other, samples):
    """True if two datamodels give the same answers, bit for bit."""
    x, _ = samples.batch()
    return (
        torch.equal(one.target.outputs(x), other.target.outputs(x))
        and torch.equal(one.outputs(x), other.outputs(x))
        and np.array_equal(one.attribute(samples, "loss").matrix, other.attribute(samples, "loss").matrix)
        and np.array_equal(
            one.attribute(samples, "logits", level="class").matrix,
            other.attribute(samples, "logits", level="class").matrix,
        )
    )


# --- save and load ---


def test_a_loaded_datamodel_gives_the_same_answers(datamodel, saved, digits):
    again = ddm.load(saved)
    assert same_answers(datamodel, again, digits.test[:8])
    assert again.trace(digits.test[3]).to_dict() == datamodel.trace(digits.test[3]).to_dict()
    x, _ = digits.test.batch([0, 1, 2])
    removed = ["3/1", 0, "7/2"]
    assert torch.equal(again.counterfactual(removed)(x), datamodel.counterfactual(removed)(x))


def test_a_loaded_datamodel_has_the_same_settings_target_and_groups(datamodel, saved, digits):
    again = ddm.load(str(saved))
    assert again.settings == datamodel.settings
    assert again.target.recipe == datamodel.target.recipe
    assert again.data == digits.train.fingerprint()
    assert again.target.fingerprint() == datamodel.target.fingerprint()
    assert again.target.trajectory.cumulative_rates == datamodel.target.trajectory.cumulative_rates
    assert again.partition.names == datamodel.partition.names
    assert np.array_equal(again.partition.groups, datamodel.partition.groups)
    assert np.array_equal(again.partition.parents, datamodel.partition.parents)
    assert repr(again) == repr(datamodel)


def test_a_loaded_datamodel_can_be_saved_elsewhere_and_over_its_own_run(run, tmp_path, digits):
    loaded = ddm.load(run)
    before = contents(run)
    loaded.save(run)
    assert contents(run) == before
    loaded.save(tmp_path / "elsewhere")
    assert contents(tmp_path / "elsewhere") == before
    assert same_answers(loaded, ddm.load(tmp_path / "elsewhere"), digits.test[:2])


def test_groups_that_cut_across_classes_load_without_a_class_level(digits, tmp_path):
    groups = np.arange(60) % 3
    made = small(digits, own(), partition=groups)
    made.save(tmp_path)
    again = ddm.load(tmp_path, own())
    assert again.partition.parents is None
    assert again.class_synset is None
    assert np.array_equal(again.attribute(digits.test[:3]).matrix, made.attribute(digits.test[:3]).matrix)


def test_groups_that_could_not_be_distilled_stay_marked_after_loading(datamodel, tmp_path, refused):
    stopped = {"0/0": "group 0/0 stopped at step 1 of 10: its images exploded; lower the matching lr."}
    made = DistilledDatamodel(
        datamodel.target,
        datamodel.partition,
        replace(datamodel.synset, stopped=stopped),
        datamodel.class_synset,
        datamodel.settings,
        datamodel.data,
    )
    made.save(tmp_path)
    again = ddm.load(tmp_path)
    assert again.synset.stopped == stopped
    with refused("0/0", "exploded"):
        again.counterfactual("0/0")


def test_a_network_in_double_precision_loads_in_double_precision(digits, tmp_path):
    made = small(digits, ddm.networks.ConvNet((1, 8, 8), 10, width=4, depth=1).double())
    made.save(tmp_path)
    again = ddm.load(tmp_path)
    assert same_answers(made, again, digits.test[:6])
    x = digits.test.batch()[0].double()
    assert torch.equal(again.counterfactual("3")(x), made.counterfactual("3")(x))


def test_frozen_parameters_stay_frozen_after_loading(digits, tmp_path):
    network = ddm.networks.ConvNet((1, 8, 8), 10, width=4, depth=1)
    network.blocks.requires_grad_(False)
    made = small(digits, network)
    made.save(tmp_path)
    again = ddm.load(tmp_path)
    assert again.target.flat.size == made.target.flat.size
    assert same_answers(made, again, digits.test[:6])


def test_a_run_holds_only_json_and_safetensors(saved):
    assert {path.suffix for path in saved.rglob("*") if path.is_file()} == {".json", ".safetensors"}
    assert not [path for path in saved.rglob("*") if path.name.startswith(".")]


def test_a_run_holds_no_training_image(saved, digits):
    files = contents(saved)
    for index in range(len(digits.train)):
        stored, seen = digits.train.raw[index].numpy().tobytes(), digits.train[index][0].numpy().tobytes()
        assert not [name for name, content in files.items() if stored in content or seen in content]


# --- networks and losses of the user ---


def test_the_users_own_network_must_be_given_again_to_load(digits, tmp_path, refused):
    made = small(digits, own())
    made.save(tmp_path)
    with refused("network=", str(tmp_path)):
        ddm.load(tmp_path)
    assert same_answers(made, ddm.load(tmp_path, own(seed=7)), digits.test[:6])


def smoothed(logits, labels):
    return F.cross_entropy(logits, labels, label_smoothing=0.2)


def cross_entropy(logits, labels):
    return smoothed(logits, labels)


@pytest.mark.parametrize("loss", [smoothed, nn.CrossEntropyLoss(label_smoothing=0.2), cross_entropy])
def test_the_users_own_loss_must_be_given_again_to_load(digits, tmp_path, refused, loss):
    made = small(digits, ddm.networks.ConvNet((1, 8, 8), 10, width=4, depth=1), loss=loss)
    made.save(tmp_path)
    with refused("loss="):
        ddm.load(tmp_path)
    assert same_answers(made, ddm.load(tmp_path, loss=loss), digits.test[:6])


@pytest.mark.parametrize(
    "network",
    [
        ddm.networks.ConvNet((1, 8, 8), 10, width=9, depth=2),
        ddm.networks.ConvNet((1, 8, 8), 10, width=8, depth=3),
        ddm.networks.ConvNet((1, 8, 8), 10, width=8, depth=2, pooling="max"),
        ddm.networks.AlexNet((1, 8, 8), 10, width=8),
        own(),
    ],
    ids=["width", "depth", "pooling", "kind", "own"],
)
def test_another_network_is_refused(saved, network, refused):
    with refused("another network"):
        ddm.load(saved, network)


def test_load_accepts_the_same_network_with_other_weights(saved, datamodel, digits):
    network = ddm.networks.ConvNet((1, 8, 8), 10, width=8, depth=2, seed=5)
    assert same_answers(datamodel, ddm.load(saved, network), digits.test[:3])


# --- refused runs ---


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_with_a_missing_file_is_refused(run, name, refused):
    (run / name).unlink()
    with refused(str(run)):
        ddm.load(run)


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_with_a_truncated_file_is_refused(run, name, refused):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])
    with refused(str(run)):
        ddm.load(run)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, refused):
    for folder in (tmp_path, tmp_path / "missing"):
        with refused("not a run", str(folder), "ddm fit"):
            ddm.load(folder)


def test_a_run_of_a_newer_format_is_refused(run, refused):
    change_manifest(run, format=manifest.FORMAT + 1)
    with refused(f"format {manifest.FORMAT + 1}", "update ddm"):
        ddm.load(run)


def test_an_incomplete_run_is_refused(run, refused):
    change_manifest(run, complete=False)
    with refused("not complete", "ddm fit"):
        ddm.load(run)


@pytest.mark.parametrize("value", [[], 3, None, {}, {"format": "1"}, {"format": None}])
def test_json_that_is_not_a_manifest_is_refused(run, value, refused):
    write_json(run / "manifest.json", value)
    with refused("manifest.json"):
        ddm.load(run)


@pytest.mark.parametrize("key", ["data", "network", "target", "checkpoints", "spec", "recipe", "loss", "settings"])
def test_a_manifest_with_a_missing_key_is_refused(run, key, refused):
    change_manifest(run, **{key: ...})
    with refused(str(run)):
        ddm.load(run)


@pytest.mark.parametrize(
    "change", [{"recipe": {"speed": 3}}, {"settings": {"speed": 3}}, {"spec": {"name": "vgg"}}, {"recipe": 3}], ids=str
)
def test_a_manifest_with_an_unknown_setting_or_network_is_refused(run, change, refused):
    change_manifest(run, **change)
    with refused():
        ddm.load(run)


def test_a_trajectory_of_another_training_is_refused(run, digits, refused):
    network = ddm.networks.ConvNet((1, 8, 8), 10, width=8, depth=2)
    ddm.train(network, digits.train, Recipe(epochs=6, lr=0.05, batch_size=64)).trajectory.save(run / "trajectory")
    with refused("trajectory", str(run)):
        ddm.load(run)


@pytest.mark.parametrize("name", ["synset.safetensors", "synset-class.safetensors", "partition.safetensors"])
def test_a_synset_or_partition_of_another_run_is_refused(run, target, digits, tmp_path, name, refused):
    other = DistilledDatamodel.fit(target, digits.train, clusters=2, curvature=32, bank=4)
    other.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, run / name)
    with refused(name):
        ddm.load(run)


def test_a_file_that_is_not_a_synset_is_refused(run, refused):
    shutil.copy(run / "partition.safetensors", run / "synset.safetensors")
    with refused("synset.safetensors"):
        ddm.load(run)
    shutil.copy(run / "trajectory" / "00000.safetensors", run / "partition.safetensors")
    with refused("partition.safetensors"):
        ddm.load(run)


# --- saving over something ---


def test_a_run_of_other_data_or_another_network_is_not_overwritten(run, target, digits, refused):
    before = contents(run)
    with refused("another data", str(run)):
        small = ddm.Target(target.network, target.trajectory)  # as recorded, so that it knows no data of its own
        DistilledDatamodel.fit(small, digits.train[:100], partition="class", curvature=32, bank=4).save(run)
    wider = ddm.train(ddm.networks.ConvNet(width=9, depth=2), digits.train, Recipe(epochs=1))
    with refused("another network", str(run)):
        DistilledDatamodel.fit(wider, digits.train, partition="class", curvature=32, bank=4).save(run)
    assert contents(run) == before


def test_saving_over_a_run_replaces_all_of_it(run, target, digits):
    across = DistilledDatamodel.fit(target, digits.train, partition=np.arange(300) % 4, curvature=32, bank=4)
    across.save(run)
    again = ddm.load(run)
    assert len(again.partition) == 4
    assert again.class_synset is None
    fewer = ddm.train(ddm.networks.ConvNet(width=8, depth=2), digits.train, Recipe(epochs=2))
    DistilledDatamodel.fit(fewer, digits.train, partition="class", curvature=32, bank=4).save(run)
    assert len(ddm.load(run).target.trajectory) == 3


def test_a_save_killed_at_any_file_leaves_the_old_run_or_the_new_one_or_none(
    saved, tmp_path, datamodel, target, digits, monkeypatch
):
    old, new = (
        datamodel,
        DistilledDatamodel.fit(target, digits.train, partition="sequence", clusters=3, curvature=32, bank=4),
    )
    rename = os.replace
    for survived in itertools.count():
        left = iter(range(survived))

        def killing(source, destination, left=left):
            if next(left, None) is None:
                raise Killed
            rename(source, destination)

        run = Path(shutil.copytree(saved, tmp_path / str(survived)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killing)
            try:
                new.save(run)
                break
            except Killed:
                pass
        try:
            found = ddm.load(run)
        except ddm.InputError:
            continue
        whole = [
            same_answers(found, one, digits.test[:2]) and np.array_equal(found.partition.groups, one.partition.groups)
            for one in (old, new)
        ]
        assert any(whole), f"killed after {survived} files, the run is a mixture of two"
    assert survived >= 4


@pytest.mark.parametrize("mine", ["trajectory/mine.txt", "parts/mine.txt", "summary.json", "notes.txt", ".hidden"])
def test_a_folder_with_other_files_is_refused_and_left_unchanged(datamodel, tmp_path, mine, refused):
    (tmp_path / mine).parent.mkdir(exist_ok=True)
    (tmp_path / mine).write_text("mine")
    with refused(str(tmp_path), "not a run", "empty folder"):
        datamodel.save(tmp_path)
    assert contents(tmp_path) == {Path(mine): b"mine"}


def test_a_folder_with_another_programs_manifest_is_refused_and_left_unchanged(datamodel, tmp_path, refused):
    (tmp_path / "manifest.json").write_text('{"name": "a web page", "icons": []}')
    (tmp_path / "parts").mkdir()
    before = contents(tmp_path)
    with refused("manifest.json"):
        datamodel.save(tmp_path)
    assert contents(tmp_path) == before
    assert (tmp_path / "parts").is_dir()


def test_an_empty_folder_name_is_refused(datamodel, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    with refused("empty"):
        datamodel.save("")
    assert os.listdir() == []


def test_a_datamodel_can_be_saved_into_the_folder_that_holds_its_trajectory(digits, tmp_path):
    data, network = digits.train[:60], own()
    target = ddm.train(network, data, Recipe(epochs=2, batch_size=20), directory=tmp_path / "trajectory")
    made = DistilledDatamodel.fit(target, data, partition="class", curvature=64, bank=8, directory=tmp_path / "parts")
    made.save(tmp_path)
    assert same_parameters(ddm.load(tmp_path, own()), made)


def same_parameters(one, other):
    return torch.equal(one.target.theta, other.target.theta)


def test_a_folder_that_cannot_be_written_is_refused(datamodel, tmp_path, refused):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nowhere")):
        with refused(str(place)):
            datamodel.save(place)
    assert os.listdir(tmp_path) == ["file"]
