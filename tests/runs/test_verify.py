"""``ddm verify``: every file of a run is checked, by itself, with the others and against the training data."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from manifests import change_manifest
from refusals import assert_refused
from tensor_dicts import same_tensors

import ddm
import ddm.compute.files
import ddm.compute.tensors
import ddm.runs.run
import ddm.truth.retraining
from ddm import DistilledDatamodel, Recipe
from ddm.compute.files import atomic_write, read_json, write_json
from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.distil.synset import Synset
from ddm.runs import folder, manifest, store
from ddm.runs.config import Config
from ddm.runs.verify import DATA, TOGETHER, verify

FILES = (
    *("config.json", "summary.json", "partition.safetensors", "synset.safetensors", "synset-class.safetensors"),
    *("responses.safetensors", "trajectory/00000.safetensors", "trajectory/00001.safetensors"),
    *("trajectory/progress.safetensors", "audit.json", "manifest.json"),
)


def config(path, **changes):
    return Config(
        data=f"npz:{path}",
        options={"width": 2, "depth": 1} | changes.pop("options", {}),
        recipe=Recipe(epochs=2, batch_size=16),
        partition="class",
        settings=ddm.Settings(curvature=8, bank=2),
        **changes,
    )


@pytest.fixture(scope="module")
def npz(digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(path, images=digits.train.raw[:60, 0].numpy(), labels=digits.train.labels[:60].numpy())
    return path


@pytest.fixture(scope="module")
def audited(npz, tmp_path_factory):
    """A complete run with an audit and its retrained models."""
    out = tmp_path_factory.mktemp("audited") / "run"
    datamodel, data, _ = ddm.runs.run.fit(config(npz), out, "serial")
    ddm.runs.run.audit(out, datamodel, data, retrain=2, unions=1, seeds=2, seed=0, engine="serial")
    return out


@pytest.fixture
def run(audited, tmp_path):
    """A copy of the audited run, which a test may damage."""
    return Path(shutil.copytree(audited, tmp_path / "run"))


@pytest.fixture(scope="module")
def other(npz, tmp_path_factory):
    """A run of a wider network."""
    out = tmp_path_factory.mktemp("other") / "run"
    ddm.runs.run.fit(config(npz, options={"width": 3}), out, "serial")
    return out


def flip(path):
    """Flip one bit near the end of a tensor file, or in the last value of a JSON file."""
    content = bytearray(path.read_bytes())
    content[-3 if path.suffix == ".safetensors" else content.rindex(b":") + 2] ^= 1
    path.write_bytes(content)


def states(run, train=None):
    return {one.name: one.state for one in verify(run, train).checked}


def bad(run, train=None):
    return {one.name: one.state for one in verify(run, train).bad}


def test_verify_accepts_an_unchanged_run(command, run, npz):
    answer = command("verify", run, "--json").json
    assert answer["whole"]
    assert answer["complete"]
    assert {one["state"] for one in answer["checked"]} == {"whole"}
    assert {*FILES, TOGETHER, DATA} <= {one["name"] for one in answer["checked"]}
    assert len([one for one in answer["checked"] if one["name"].startswith("exact/")]) >= 2
    shown = command("verify", run)
    assert shown.code == 0
    assert "is whole." in shown.out


@pytest.mark.parametrize("name", FILES)
def test_verify_names_the_file_with_a_flipped_bit(run, name, command):
    flip(run / name)
    answer = command("verify", run)
    assert answer.code == 2
    assert name in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", FILES[:-2])
def test_verify_names_a_missing_file(run, name):
    (run / name).unlink()
    assert bad(run) == {name: "missing"}


@pytest.mark.parametrize("name", FILES[2:9])
def test_verify_names_a_truncated_file(run, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])
    assert bad(run) == {name: "damaged"}


def test_verify_names_a_damaged_retrained_model(run):
    path = next((run / "exact").iterdir())
    flip(path)
    assert bad(run) == {f"exact/{path.name}": "damaged"}


def test_verify_reports_all_bad_files_at_once(run, command):
    (run / "summary.json").unlink()
    flip(run / "synset.safetensors")
    said = command("verify", run, "--json")
    assert said.code == 2
    assert said.err.count("\n") == 1
    found = {one["name"]: one["state"] for one in json.loads(said.out)["checked"]}
    assert (found["summary.json"], found["synset.safetensors"]) == ("missing", "damaged")
    assert found["config.json"] == "whole"


@pytest.mark.parametrize(
    "name",
    ["synset.safetensors", "synset-class.safetensors", "responses.safetensors", "trajectory/00002.safetensors"],
)
def test_a_file_of_another_run_is_foreign(run, other, name):
    shutil.copy(other / name, run / name)
    assert bad(run) == {name: "foreign"}


def test_an_extra_checkpoint_is_foreign(run):
    shutil.copy(run / "trajectory" / "00002.safetensors", run / "trajectory" / "00003.safetensors")
    assert bad(run) == {"trajectory/00003.safetensors": "foreign"}


def test_an_audit_of_another_synset_is_foreign(run):
    values = read_json(run / "audit.json")
    values["of"] = "0" * 64
    del values["checksum"]
    write_json(run / "audit.json", values)
    assert bad(run) == {"audit.json": "foreign"}


@pytest.mark.parametrize("name", ["notes.txt", ".DS_Store", "trajectory/.DS_Store"])
def test_files_that_a_user_adds_to_a_run_do_no_harm(run, name):
    (run / name).write_text("mine")
    assert states(run)[name] == "other"
    assert not bad(run)


@pytest.mark.parametrize("name", ["manifest.json", "exact/a.safetensors", "parts/0000-class.safetensors"])
@pytest.mark.parametrize("complete", [True, False])
def test_temporary_files_of_a_killed_write_do_no_harm(run, name, complete):
    change_manifest(run, complete=complete)
    with atomic_write(run / name) as half:
        half.write_text("half of a write")
        assert states(run)[half.relative_to(run).as_posix()] == "other"
        assert not bad(run)


def test_a_temporary_file_of_a_killed_checkpoint_write_does_no_harm(run):
    with atomic_write(run / "trajectory" / "00003.safetensors") as half:
        half.write_text("half of a write")
        assert not bad(run)


def test_the_existing_files_of_an_incomplete_run_are_checked(run):
    write_json(run / "manifest.json", {"format": manifest.FORMAT, "complete": False})
    found = verify(run)
    assert not found.bad
    assert "not complete" in found.sentence
    flip(run / "trajectory" / "00001.safetensors")
    assert bad(run) == {"trajectory/00001.safetensors": "damaged"}


def test_a_run_without_checksums_still_loads_and_verify_calls_it_unchecked(run, digits):
    """The first versions wrote such runs: checksums of three files in the manifest, and none inside files."""
    for name in ("responses.safetensors", "evidence.safetensors"):
        (run / name).unlink()
    for path in run.rglob("*.safetensors"):
        tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
        metadata = {key: value for key, value in read_metadata(path).items() if key not in ("origin", "data")}
        path.unlink()
        ddm.compute.tensors.save_file(tensors, path, metadata={"ddm": json.dumps(metadata)})
    facts = read_json(run / "manifest.json")
    facts["files"] = {
        name: ddm.compute.files.hash_file(run / name) for name in facts["files"] if name in folder.FILES[2:-1]
    }
    for key in ("checksum", "described"):
        del facts[key]
    write_json(run / "manifest.json", facts)
    (run / "audit.json").unlink()
    assert ddm.load(run).outputs(digits.test.batch()[0]).isfinite().all()
    found = verify(run)
    assert not found.bad
    assert {one.name for one in found.checked if one.state == "unchecked"} >= {"manifest.json", "config.json"}
    assert "not checked" in found.sentence


# --- the training data ---


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x[1:], y[1:]), "samples there"),
        (lambda x, y: (255 - x, y), "other inputs"),
        (lambda x, y: (x, (y + 1) % 10), "other labels"),
        (lambda x, y: (x[:, 1:], y), "shape there"),
        (lambda x, y: (x, [f"digit {one}" for one in y]), "other classes"),
    ],
    ids=["fewer", "inputs", "labels", "shape", "names"],
)
def test_changed_training_data_are_refused_and_the_message_names_the_difference(
    run, npz, change, told, tmp_path, command
):
    with np.load(npz) as arrays:
        x, y = change(arrays["images"], arrays["labels"])
    np.savez(tmp_path / "changed.npz", images=x, labels=y)
    kept = read_json(run / "config.json")
    write_json(run / "config.json", kept | {"data": f"npz:{tmp_path / 'changed.npz'}"})
    assert_refused(command("trace", run, "--index", 0), "other training data", told)
    write_json(run / "config.json", kept)
    changed = ddm.datasets.load(f"npz:{tmp_path / 'changed.npz'}").train
    assert bad(run, changed) == {DATA: "foreign"}
    assert told in verify(run, changed).sentence
    with pytest.raises(ddm.InputError, match=told):
        ddm.load(run).audit(changed, train=changed, retrain=2)


def test_missing_training_data_are_not_reported_as_changed(run, npz, command, tmp_path):
    moved = Path(shutil.move(npz, tmp_path / "moved.npz"))
    try:
        answer = command("verify", run, "--json").json
        assert [one["state"] for one in answer["checked"] if one["name"] == DATA] == ["unchecked"]
    finally:
        shutil.move(moved, npz)


# --- files of different runs ---


def test_a_synset_of_another_network_is_refused_and_the_message_names_both_networks(run, audited, digits, refused):
    network = ddm.networks.AlexNet((1, 8, 8), 10, width=2)
    target = ddm.train(network, digits.train[:40], Recipe(epochs=1, batch_size=40))
    made = DistilledDatamodel.fit(target, digits.train[:40], partition="class", curvature=8, bank=2)
    made.synset.save(run / "synset.safetensors")
    with refused("synset.safetensors", "another network", "AlexNet", "ConvNet"):
        ddm.load(run)
    mine = ddm.load(audited)
    with refused("another network", "AlexNet", "ConvNet"):
        DistilledDatamodel(mine.target, mine.partition, made.synset, None, mine.settings, mine.data)


@pytest.mark.parametrize(
    ("what", "told"), [("data", "other training data"), ("target", "another training of the same network")]
)
def test_a_synset_of_other_data_or_another_training_is_refused_and_the_message_names_the_difference(
    run, what, told, refused
):
    synset = Synset.load(run / "synset.safetensors")
    replace(synset, origin={**synset.origin, what: "0" * 64}).save(run / "synset.safetensors")
    with refused("synset.safetensors", told):
        ddm.load(run)
    assert told in verify(run).sentence


@pytest.mark.parametrize(
    ("recipe", "rows", "told"),
    [(Recipe(epochs=2, batch_size=16), slice(0, 30), "other data"), (Recipe(epochs=2), slice(None), "another recipe")],
)
def test_a_trajectory_of_other_data_or_another_recipe_is_refused_and_the_message_names_the_difference(
    run, npz, recipe, rows, told, refused
):
    train = ddm.datasets.load(f"npz:{npz}").train[rows]
    shutil.rmtree(run / "trajectory")
    network = ddm.networks.build("convnet", train.shape, 10, width=2, depth=1)
    ddm.train(network, train, recipe, directory=run / "trajectory")
    with refused("trajectory", told):
        ddm.load(run)
    assert "foreign" in bad(run).values()
    assert told in verify(run).sentence


def test_a_trajectory_of_another_network_is_refused_and_the_message_names_the_tensor_that_differs(run, other, refused):
    shutil.rmtree(run / "trajectory")
    shutil.copytree(other / "trajectory", run / "trajectory")
    with refused("another network", "blocks.0.0.weight", "(3, 1, 3, 3)", "(2, 1, 3, 3)"):
        ddm.load(run)


def test_another_network_is_refused_and_the_message_names_the_difference(run, refused):
    with refused("another network", "[2, 1, 3, 3]", "[4, 1, 3, 3]"):
        ddm.load(run, ddm.networks.ConvNet((1, 8, 8), 10, width=4, depth=1))
    with refused("another network", "pooling is avg there, max in the one given"):
        ddm.load(run, ddm.networks.ConvNet((1, 8, 8), 10, width=2, depth=1, pooling="max"))


def test_verify_rejects_a_synset_whose_groups_are_not_those_of_the_partition(run):
    path = run / "partition.safetensors"
    metadata = read_metadata(path)
    write_tensors(path, read_tensors(path), metadata | {"names": [f"group {name}" for name in metadata["names"]]})
    change_manifest(
        run, files=read_json(run / "manifest.json")["files"] | {path.name: ddm.compute.files.hash_file(path)}
    )
    assert bad(run) == {TOGETHER: "foreign"}
    assert "other groups" in verify(run).sentence


def test_verify_does_not_load_training_data_if_files_are_bad_or_the_run_is_incomplete(run):
    def look():
        raise AssertionError("the training data were loaded")

    flip(run / "synset.safetensors")
    assert "synset.safetensors" in bad(run, look)
    write_json(run / "manifest.json", {"format": manifest.FORMAT, "complete": False})
    assert not verify(run, look).complete


# --- changed files ---


def test_a_changed_manifest_is_refused(run, command, refused):
    text = (run / "manifest.json").read_text()
    assert text.count('"lr": 0.1,') == 1
    (run / "manifest.json").write_text(text.replace('"lr": 0.1,', '"lr": 0.2,'))
    assert_refused(command("audit", run, "--retrain", 2), "manifest.json", "has changed since")
    with refused("manifest.json"):
        ddm.load(run)


def test_a_changed_audit_is_refused(run, command):
    values = read_json(run / "audit.json")
    write_json(run / "audit.json", values | {"unions": values["unions"] + 1})
    assert_refused(command("trace", run, "--index", 0), "audit.json", "delete it")
    (run / "audit.json").unlink()
    assert command("trace", run, "--index", 0).code == 0


def test_a_changed_retrained_model_is_refused_and_trained_again_once_deleted(run, refused):
    datamodel, data = ddm.runs.run.open_run(run)
    exact = ddm.truth.retraining.Retraining(datamodel.target, data.train, run / "exact", engine="serial")
    nothing = np.array([], int)
    before = {name: tensor.clone() for name, tensor in next(exact.states([nothing])).items()}
    path = exact._path(nothing, 0)
    flip(path)
    with refused(path.name, "delete it, and it is trained again"):
        next(exact.states([nothing]))
    path.unlink()
    assert same_tensors(next(exact.states([nothing])), before)


@pytest.mark.parametrize("name", ["00000.safetensors", "00001.safetensors"])
def test_a_changed_checkpoint_is_refused(run, name, refused):
    flip(run / "trajectory" / name)
    trajectory = ddm.load(run).target.trajectory
    with refused(name, "has changed since it was written", "restore it"):
        list(trajectory)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("trajectory/progress.safetensors", "training starts again"),
        ("parts/0000-cluster.safetensors", "distilled again"),
    ],
)
def test_a_fit_does_not_resume_from_changed_files(npz, tmp_path, name, cure, monkeypatch, refused):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            ddm.runs.run.fit(config(npz), tmp_path / "run", "serial")
    flip(tmp_path / "run" / name)
    with refused(name, cure):
        ddm.runs.run.fit(config(npz), tmp_path / "run", "serial")
    (tmp_path / "run" / name).unlink()
    ddm.runs.run.fit(config(npz), tmp_path / "run", "serial")
    assert not bad(tmp_path / "run")


def test_a_run_of_a_newer_format_is_refused(run, command):
    change_manifest(run, format=manifest.FORMAT + 1)
    assert_refused(command("verify", run), f"format {manifest.FORMAT + 1}", "update ddm")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, command):
    assert_refused(command("verify", tmp_path), "not a run")


# --- checkpoints that are read later ---


def test_a_foreign_first_checkpoint_is_refused_when_it_is_read(run, refused):
    path = run / "trajectory" / "00000.safetensors"
    tensors, metadata = read_tensors(path), read_metadata(path)
    write_tensors(path, {name: tensor + 1 for name, tensor in tensors.items()}, metadata)  # its own checksum is right
    loaded, data = ddm.runs.run.open_run(run)
    with refused("00000.safetensors", "saved with"):
        loaded.target.at(0)
    with refused("00000.safetensors", "saved with"):
        loaded.audit(data.test, retrain=2, unions=0, engine="serial")


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"speed": 1}},
        {"recipe": {"epochs": "many"}},
        {"recipe": ...},
        {"settings": {"bank": "large"}},
        {"settings": None},
        {"dtype": "complex64"},
        {"dtype": ...},
        {"trained": []},
        {"trained": ["nothing"]},
        {"loss": ...},
        {"loss": 3},
        {"spec": {"name": "convnet"}},
        {"checkpoints": 2},
    ],
    ids=str,
)
def test_verify_rejects_a_manifest_that_load_refuses(run, change, refused):
    change_manifest(run, **change)
    with refused():
        ddm.load(run)
    assert bad(run) == {"the files together": "foreign"}
