"""A run: the same config gives the same bytes, also if the run is killed and resumes."""

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ddm
import ddm.datamodel
import ddm.groups.partition
import ddm.training.loop
from ddm import DistilledDatamodel, InputError, Recipe, Settings
from ddm.compute.files import read_json, write_json
from ddm.distil import distil
from ddm.distil.gradient import matching as gradient_matching
from ddm.runs import inputs, manifest, run, store
from ddm.runs.config import Config, read_config
from ddm.runs.run import fit, open_run


class Killed(BaseException):
    """Simulates a kill: a ``BaseException``, so no handler of ``Exception`` catches it."""


RESULTS = ("synset.safetensors", "synset-class.safetensors", "partition.safetensors")


@pytest.fixture(scope="module")
def npz(digits, tmp_path_factory):
    """Digits 0, 1 and 2 in an npz file, as a user would bring them."""
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    samples = digits.train[digits.train.labels < 3]
    np.savez(path, images=samples.raw.numpy(), labels=samples.labels.numpy())
    return path


@pytest.fixture(scope="module")
def config(npz):
    return Config(
        data=f"npz:{npz}",
        options={"width": 4, "depth": 1, "seed": 0},
        recipe=Recipe(epochs=3, batch_size=16, momentum=0.5),
        clusters=2,
        settings=Settings(matching="reverse", steps=3, offset=1, memory=8e-6),  # memory for one class at a time
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "finished"
    fit(config, out)
    return out


def results(out):
    return {name: (out / name).read_bytes() for name in RESULTS}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the same result ---


def test_another_seed_gives_another_synset(config, finished, tmp_path):
    fit(replace(config, settings=replace(config.settings, seed=1)), tmp_path)
    assert results(tmp_path)["synset.safetensors"] != results(finished)["synset.safetensors"]


def test_the_config_replays_the_run(finished, tmp_path):
    fit(Config.from_dict(read_json(finished / "config.json")), tmp_path)
    assert results(tmp_path) == results(finished)


def test_fitting_a_complete_run_again_changes_nothing(config, finished, digits):
    files = contents(finished), {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    datamodel, data, facts = fit(config, finished)
    assert (contents(finished), {path: path.stat().st_mtime_ns for path in finished.rglob("*")}) == files
    assert facts == read_json(finished / "summary.json")
    again, _ = open_run(finished)
    x, _ = data.test.batch()
    assert torch.equal(datamodel.outputs(x), again.outputs(x))


def test_a_run_has_the_same_bytes_as_one_made_in_python(config, finished, tmp_path):
    data = ddm.datasets.load(config.data)
    network = ddm.networks.ConvNet(data.train.shape, 3, width=4, depth=1)
    target = ddm.train(network, data.train, config.recipe)
    DistilledDatamodel.fit(target, data.train, clusters=2, settings=config.settings).save(tmp_path)
    assert results(tmp_path) == results(finished)


def test_fitting_a_complete_run_on_another_device_changes_nothing(config, finished):
    before = contents(finished)
    fit(replace(config, device="cpu:0"), finished)
    assert contents(finished) == before


def test_a_complete_run_has_no_parts_and_no_temporary_files(finished):
    names = {path.name for path in finished.rglob("*")}
    assert "parts" not in names
    assert not [name for name in names if name.startswith(".")]


def test_a_run_holds_no_training_image(config, finished):
    files = contents(finished)
    train = ddm.datasets.load(config.data).train
    for index in range(len(train)):
        stored, seen = train.raw[index].numpy().tobytes(), train[index][0].numpy().tobytes()
        assert not [name for name, content in files.items() if stored in content or seen in content]


def test_the_summary_counts_samples_groups_checkpoints_and_parameters(config, finished):
    facts = read_json(finished / "summary.json")
    datamodel, data = open_run(finished)
    assert facts["samples"] == {name: len(data.split(name)) for name in ("train", "validation", "test")}
    assert facts["accuracy"]["test"] == datamodel.target.accuracy(data.test)
    assert facts["groups"] == len(datamodel.partition) == 6
    assert facts["group_sizes"]["largest"] == datamodel.partition.sizes.max()
    assert facts["checkpoints"] == 4
    assert facts["parameters"] == datamodel.target.flat.size


# --- killed runs resume ---


def interrupting(original, survived):
    """``original``, which simulates a kill after ``survived`` calls."""
    left = iter(range(survived))

    def call(*args, **options):
        if next(left, None) is None:
            raise Killed
        return original(*args, **options)

    return call


def killed(config, out, patch, owner, name, survived):
    patch.setattr(owner, name, interrupting(getattr(owner, name), survived))
    with pytest.raises(Killed):
        fit(config, out)


@pytest.mark.parametrize(
    ("owner", "name", "survived"),
    [
        (run, "train", 0),
        (ddm.training.loop.augmentation, "augment", 1),
        (ddm.training.loop.augmentation, "augment", 5),
        (ddm.datamodel, "make_partition", 0),
        (ddm.datamodel, "distil", 0),
        (gradient_matching, "match_gradients", 0),
        (gradient_matching, "match_gradients", 1),
        (gradient_matching, "match_gradients", 4),
        (run, "summarise", 0),
        (store, "save", 0),
        (manifest, "describe", 0),
    ],
    ids=lambda value: value if isinstance(value, (str, int)) else "",
)
def test_a_run_killed_anywhere_resumes_to_the_same_bytes(
    config, finished, tmp_path, monkeypatch, owner, name, survived
):
    with monkeypatch.context() as patch:
        killed(config, tmp_path / "out", patch, owner, name, survived)
    with pytest.raises(InputError, match="not complete"):
        ddm.load(tmp_path / "out")
    fit(config, tmp_path / "out")
    assert results(tmp_path / "out") == results(finished)
    assert contents(tmp_path / "out").keys() == contents(finished).keys()


@pytest.mark.parametrize("survived", [1, 4, 8, 11, 16, 20])
def test_a_run_killed_while_it_writes_a_file_resumes_to_the_same_bytes(
    config, finished, tmp_path, monkeypatch, survived
):
    with monkeypatch.context() as patch:
        killed(config, tmp_path / "out", patch, os, "replace", survived)
    fit(config, tmp_path / "out")
    assert results(tmp_path / "out") == results(finished)
    assert contents(tmp_path / "out").keys() == contents(finished).keys()


def test_a_fit_killed_in_its_first_write_resumes_in_its_folder(config, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / ".ddm-abandoned").mkdir(parents=True)
    (out / ".ddm-abandoned" / "file").write_text("{")
    fit(config, out)
    assert results(out) == results(finished)


def test_a_run_killed_repeatedly_still_resumes_to_the_same_bytes(config, finished, tmp_path, monkeypatch):
    for owner, name, survived in (
        (ddm.training.loop.augmentation, "augment", 4),
        (gradient_matching, "match_gradients", 2),
        (run, "summarise", 0),
    ):
        with monkeypatch.context() as patch:
            killed(config, tmp_path, patch, owner, name, survived)
    fit(config, tmp_path)
    assert results(tmp_path) == results(finished)


def test_finished_blocks_and_epochs_are_not_computed_again(config, tmp_path, monkeypatch):
    matched = []
    match = gradient_matching.match_gradients
    monkeypatch.setattr(gradient_matching, "match_gradients", lambda *args: matched.append(args[4]) or match(*args))
    fit(config, tmp_path / "whole")
    whole, matched[:] = list(matched), []
    assert len(whole) >= 4
    with monkeypatch.context() as patch:
        killed(config, tmp_path / "out", patch, gradient_matching, "match_gradients", 3)
    assert len(matched) == 3
    with monkeypatch.context() as patch:
        patch.setattr(ddm.training.loop.augmentation, "augment", interrupting(None, 0))
        fit(config, tmp_path / "out")
    done = set(map(str, whole)) - set(map(str, matched[3:]))
    assert 2 <= len(done) <= 3


def test_stored_blocks_of_another_fit_are_not_used(config, npz, tmp_path):
    data = ddm.datasets.load(f"npz:{npz}").train
    network = ddm.networks.ConvNet(data.shape, 3, width=4, depth=1)
    one, other = (ddm.train(network, data, Recipe(epochs=2, batch_size=16, seed=seed)) for seed in (0, 1))
    groups = ddm.groups.partition.sequential(data, 2)
    swapped = ddm.groups.partition.from_groups(data, np.roll(groups.groups, 1))
    asked = [
        (one, data, groups, Settings(matching="reverse", steps=2)),
        (one, data, groups, Settings(matching="reverse", steps=3)),
        (other, data, groups, Settings(matching="reverse", steps=2)),
        (one, data, swapped, Settings(matching="reverse", steps=2)),
    ]
    for number, question in enumerate(asked):
        expected = distil(*question).synset
        try:
            found = distil(*question, tmp_path / "parts").synset
        except InputError:
            continue
        assert found.names == expected.names, number
        assert torch.equal(found.images, expected.images), number


# --- files that do not belong together ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clusters": 3}, ("clusters", "2 there", "3 now")),
        ({"limit": 20}, ("limit", "None there", "20 now")),
        ({"model": "alexnet", "options": {"seed": 0}}, ("model", "convnet there", "alexnet now")),
        ({"data": "digits"}, ("data", "digits now")),
        ({"partition": "class"}, ("partition", "kmeans there", "class now")),
        ({"options": {"width": 5, "depth": 1, "seed": 0}}, ("options", "width: 4 there, 5 now")),
        ({"options": {"width": 4, "depth": 1}}, ("options", "seed: 0 there")),
        ({"recipe": Recipe(epochs=3, batch_size=16)}, ("recipe", "momentum: 0.5 there, 0.0 now")),
        (
            {"settings": Settings(matching="reverse", steps=4, offset=1, memory=8e-6)},
            ("settings", "steps: 3 there, 4 now"),
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_another_config_in_the_same_folder_is_refused_and_the_message_names_the_difference(
    config, finished, change, words, refused
):
    before = contents(finished)
    with refused(str(finished), *words):
        fit(replace(config, **change), finished)
    assert contents(finished) == before


def test_another_config_in_the_folder_of_a_killed_run_is_refused_too(config, tmp_path, monkeypatch, refused):
    with monkeypatch.context() as patch:
        killed(config, tmp_path, patch, ddm.datamodel, "distil", 0)
    with refused("clusters"):
        fit(replace(config, clusters=1), tmp_path)


def test_a_run_whose_data_have_changed_is_refused(config, npz, tmp_path, refused):
    moved = tmp_path / "digits.npz"
    shutil.copy(npz, moved)
    mine = replace(config, data=f"npz:{moved}", settings=Settings(matching="reverse", steps=0))
    fit(mine, tmp_path / "out")
    with np.load(moved) as arrays:
        np.savez(moved, images=255 - arrays["images"], labels=arrays["labels"])
    with refused("other training data", str(tmp_path / "out")):
        open_run(tmp_path / "out")
    with refused("other training data"):
        fit(mine, tmp_path / "out")


def test_a_killed_run_whose_data_have_changed_is_refused(config, npz, tmp_path, monkeypatch, refused):
    moved = tmp_path / "digits.npz"
    shutil.copy(npz, moved)
    mine = replace(config, data=f"npz:{moved}")
    with monkeypatch.context() as patch:
        killed(mine, tmp_path / "out", patch, ddm.datamodel, "distil", 0)
    with np.load(moved) as arrays:
        np.savez(moved, images=255 - arrays["images"], labels=arrays["labels"])
    with refused("data"):
        fit(mine, tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["summary.json", "config.json", "partition.safetensors", "trajectory/00001.safetensors"]
)
def test_a_complete_run_that_lost_a_file_is_refused_or_computed_again(config, finished, tmp_path, name):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / name).unlink()
    try:
        fit(config, out)
    except InputError:
        return
    assert results(out) == results(finished)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"text"', "null", "{}"])
def test_a_run_whose_config_json_is_not_a_config_is_refused(config, finished, tmp_path, content, refused):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / "config.json").write_text(content)
    with refused():
        fit(config, out)
    with refused():
        open_run(out)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": None},
        {"recipe": {"speed": 1}},
        {"recipe": {"epochs": "many"}},
        {"settings": []},
        {"settings": {"steps": "many"}},
        {"settings": {"ipc": 1.5}},
        {"settings": {"labels": ["hard"]}},
        {"clusters": "many"},
        {"clusters": 1.5},
        {"clusters": None},
        {"speed": 1},
        {"data": 3},
        {"model": 3},
        {"options": 3},
        {"options": {"width": "wide"}},
        {"limit": "few"},
        {"device": "abacus"},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_replayed_is_refused_before_anything_is_written(config, tmp_path, change, refused):
    with refused():
        fit(Config.from_dict(config.to_dict() | change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_config_survives_json(config, tmp_path):
    write_json(tmp_path / "config.json", config.to_dict())
    assert Config.from_dict(read_json(tmp_path / "config.json")) == config


def test_a_folder_that_cannot_be_written_is_refused_before_training(config, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(run, "train", interrupting(None, 0))
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nowhere")):
        with refused(str(out)):
            fit(config, out)


# --- runs saved from Python ---


@pytest.fixture(scope="module")
def from_python(config, npz, tmp_path_factory):
    data = ddm.datasets.load(f"npz:{npz}")
    target = ddm.train(ddm.networks.ConvNet(data.train.shape, 3, width=4, depth=1), data.train, config.recipe)
    out = tmp_path_factory.mktemp("runs") / "python"
    DistilledDatamodel.fit(target, data.train, partition="class", curvature=32, bank=4).save(out)
    return out


def test_a_run_saved_from_python_opens_with_the_name_of_its_data(from_python, npz, refused):
    with refused("--data"):
        open_run(from_python)
    datamodel, data = open_run(from_python, name=f"npz:{npz}")
    assert datamodel.data == data.train.fingerprint()
    with refused("other training data"):
        open_run(from_python, name="digits")


def test_a_loaded_run_finds_its_own_training_set_when_it_is_first_needed(finished, npz, monkeypatch):
    loads = []
    load = ddm.datasets.load
    monkeypatch.setattr(inputs.datasets, "load", lambda *given, **named: loads.append(given) or load(*given, **named))
    loaded, data = ddm.load(finished), load(f"npz:{npz}")
    loaded.attribute(data.test[:3])
    assert loads == []
    assert loaded.diagnose(data.test).sizes.sum() == len(data.train)
    assert len(loaded.shares(data.test[:3], 0, "logits")) == loaded.partition.sizes[0]
    assert len(loads) == 1


def test_a_loaded_run_whose_data_are_changed_or_missing_asks_for_the_training_set(config, npz, tmp_path, refused):
    path = Path(shutil.copy(npz, tmp_path / "mine.npz"))
    fit(replace(config, data=f"npz:{path}"), tmp_path / "run")
    data = ddm.datasets.load(f"npz:{path}")
    changed = np.load(path)
    np.savez(path, images=changed["images"][::-1], labels=changed["labels"][::-1])
    with refused("another training set", "mine.npz"):
        ddm.load(tmp_path / "run").diagnose(data.test)
    path.unlink()
    with refused("mine.npz", "train="):
        ddm.load(tmp_path / "run").diagnose(data.test)
    assert ddm.load(tmp_path / "run").diagnose(data.test, train=data.train).counts.sum() == len(data.test)


def test_a_loaded_run_that_does_not_name_its_data_says_what_to_pass(from_python, npz, refused):
    data = ddm.datasets.load(f"npz:{npz}")
    loaded = ddm.load(from_python)
    for ask in (loaded.shares, loaded.diagnose):
        with refused("saved from Python", "training set", "train="):
            ask(data.test[:3])


def test_the_name_of_other_data_than_the_runs_own_is_refused(finished, refused):
    with refused("data"):
        open_run(finished, name="digits")


def test_a_run_that_is_loaded_and_saved_in_its_place_still_replays(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    ddm.load(out).save(out)
    assert read_json(out / "config.json") == read_json(finished / "config.json")
    open_run(out)


# --- the user's own groups ---


def test_groups_are_read_from_a_file_with_one_line_per_training_sample(config, npz, tmp_path):
    with np.load(npz) as arrays:
        labels = arrays["labels"]
    groups = tmp_path / "groups.txt"
    groups.write_text("".join(f"{'round' if label == 0 else 'other'} \n" for label in labels), encoding="utf-8")
    datamodel, data, _ = fit(
        replace(config, groups=str(groups), settings=Settings(matching="reverse", steps=1)), tmp_path / "out"
    )
    assert datamodel.partition.names == ("other", "round")
    assert np.array_equal(datamodel.partition.groups == 1, data.train.labels.numpy() == 0)
    assert datamodel.class_synset is None


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"\xff\xfe\n" * 200, None], ids=["short", "not text", "missing"])
def test_a_groups_file_that_does_not_fit_is_refused_before_anything_is_written(
    config, tmp_path, monkeypatch, content, refused
):
    monkeypatch.setattr(run, "train", interrupting(None, 0))
    if content is not None:
        (tmp_path / "groups.txt").write_bytes(content)
    with refused("groups.txt"):
        fit(replace(config, groups=str(tmp_path / "groups.txt")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_killed_run_whose_groups_file_has_changed_is_refused(config, npz, tmp_path, monkeypatch, refused):
    groups = tmp_path / "groups.txt"
    with np.load(npz) as arrays:
        groups.write_text("".join(f"{label}\n" for label in arrays["labels"]))
    mine = replace(config, groups=str(groups), groups_hash=inputs.hash_file(groups))
    with monkeypatch.context() as patch:
        killed(mine, tmp_path / "out", patch, gradient_matching, "match_gradients", 2)
    groups.write_text(groups.read_text().replace("2", "1"))
    with refused("groups.txt"):
        fit(mine, tmp_path / "out")


def test_fewer_samples_than_clusters_prints_a_note_and_the_run_continues(config, tmp_path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, _, facts = fit(
            replace(config, limit=6, clusters=4, settings=Settings(matching="reverse", steps=1)), tmp_path
        )
    assert [w for w in said if "too few distinct samples for 4 clusters" in str(w.message)]
    assert facts["groups"] == 6


# --- relative paths ---


@pytest.fixture
def project(npz, digits, tmp_path, monkeypatch):
    """A folder with data and groups, set as the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(npz, folder / "mine.npz")
    lines = ["a", "b"] * len(np.load(npz)["labels"])
    (folder / "groups.txt").write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def relative(config):
    settings = Settings(matching="reverse", steps=1, offset=1)
    return replace(config, data="npz:mine.npz", groups="groups.txt", settings=settings)


def test_a_run_with_relative_paths_opens_from_any_folder(relative, project, monkeypatch):
    fit(relative, Path("runs/mine"))
    monkeypatch.chdir("/")
    _, data = open_run(project / "runs" / "mine")
    assert data.name == "npz:mine.npz"
    moved = shutil.copytree(project, project.parent / "moved")
    shutil.rmtree(project)
    open_run(moved / "runs" / "mine")


def test_a_config_with_relative_paths_replays_from_any_folder(relative, project, tmp_path, monkeypatch):
    fit(relative, Path("runs/mine"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = Config.from_dict(read_config(project / "runs" / "mine" / "config.json"))
    fit(config, Path("again"))
    assert results_of(elsewhere / "again") == results_of(project / "runs" / "mine")
    monkeypatch.chdir("/")
    datamodel, _ = open_run(elsewhere / "again")
    datamodel.save(tmp_path / "third" / "run")
    open_run(tmp_path / "third" / "run")


def results_of(out):
    return {name: (out / name).read_bytes() for name in RESULTS if (out / name).exists()}


def test_a_run_without_a_base_opens_from_the_folder_it_was_made_in(relative, project):
    out = Path("runs/mine")
    fit(relative, out)
    old = read_json(out / "config.json")
    del old["base"]
    write_json(out / "config.json", old)
    datamodel, data = open_run(out)
    assert data.train.fingerprint() == datamodel.data


def test_a_run_whose_data_are_in_the_default_folder_opens_from_any_folder(project, monkeypatch):
    (project / "data" / "mnist").mkdir(parents=True)
    monkeypatch.setattr(
        inputs.datasets, "load", lambda name, root, **_: (_ for _ in ()).throw(InputError(f"root {root}"))
    )
    based = replace(Config(data="mnist"), base=str(project))
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match=str(project / "data" / "mnist")):
        inputs.load_data(based)
