"""``ddm distil``: the synset of a run that was fitted without one, and runs for release."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from manifests import change_manifest
from refusals import assert_refused

import ddm
import ddm.runs.run
from ddm.compute.files import read_json, write_json
from ddm.explorer.explored_run import ExploredRun, warm_up
from ddm.runs import release, store
from ddm.runs.config import Config
from ddm.runs.verify import verify

CONFIG = Config(
    limit=60,
    options={"width": 4, "depth": 1, "seed": 0},
    recipe=ddm.Recipe(epochs=2, batch_size=16),
    partition="class",
    settings=ddm.Settings(curvature=64, bank=8),
)
BARE = replace(CONFIG, settings=replace(CONFIG.settings, synset=False))

RELEASED = {
    *("manifest.json", "config.json", "summary.json", "partition.safetensors", "synset.safetensors"),
    *("synset-class.safetensors", "trajectory/00000.safetensors"),
}


class Killed(BaseException):
    """Simulates a kill: a ``BaseException``, so no handler of ``Exception`` catches it."""


@pytest.fixture(scope="module")
def bare_run(tmp_path_factory):
    """A run that was fitted without a synset, and audited."""
    out = tmp_path_factory.mktemp("bare") / "run"
    datamodel, data, _ = ddm.runs.run.fit(BARE, out, "serial")
    ddm.runs.run.audit(out, datamodel, data, retrain=2, unions=0, seeds=2, seed=0, engine="serial")
    return out


@pytest.fixture
def run(bare_run, tmp_path):
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(bare_run, tmp_path / "run"))


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_run_without_synset_answers_from_its_responses(bare_run, finished_run, digits, refused):
    assert "synset.safetensors" not in names(bare_run)
    bare, whole = ddm.load(bare_run), ddm.load(finished_run)
    assert bare.evidence is not None  # of the audit
    bare._use(None)
    x = digits.test.batch(slice(0, 9))[0]
    assert torch.equal(bare.outputs(x), whole.outputs(x))
    assert "there is no synset yet" in bare.distilled.sentence
    with refused("no synset yet", "ddm distil"):
        bare.synset  # noqa: B018


def test_shares_diagnoses_and_the_explorer_work_without_a_synset(bare_run, finished_run):
    (bare, data), (whole, _) = (ddm.runs.run.open_run(run) for run in (bare_run, finished_run))
    bare.audited = None  # a diagnosis says how far to trust it
    bare._use(None)  # the retrainings of the audit improve answers
    assert bare.shares(data.test[0]).to_dict() == whole.shares(data.test[0]).to_dict()
    assert bare.diagnose(data.validation).to_dict() == whole.diagnose(data.validation).to_dict()
    explored = ExploredRun(bare_run, bare, data)
    warm_up(explored)
    assert explored.can_remove(bare.partition.names[0])
    x = data.test.batch(slice(0, 3))[0]
    expected = whole.counterfactual(0)(x)
    torch.testing.assert_close(explored.model_without((bare.partition.names[0],))(x), expected)


def test_the_synset_that_ddm_distil_adds_is_that_of_a_fit_with_it_bit_for_bit(run, finished_run, command):
    answer = command("distil", run, "--json").json
    assert answer["synset_bytes"] > 0
    for name in ("synset.safetensors", "synset-class.safetensors", "responses.safetensors"):
        assert (run / name).read_bytes() == (finished_run / name).read_bytes()
    found = verify(run)
    assert not found.bad
    assert {"training", "distilling"} <= set(answer["seconds"])
    assert ddm.load(run).audited is not None  # it speaks of the responses, from which answers still come
    shown = command("distil", run)
    assert shown.code == 0
    assert "of the change." in shown.out


def test_distil_in_python_gives_the_same_synset_and_loads_the_training_set_itself(run, finished_run):
    loaded, whole = ddm.load(run), ddm.load(finished_run)
    assert torch.equal(loaded.distil().targets, whole.synset.targets)
    assert torch.equal(loaded.class_synset.targets, whole.class_synset.targets)
    assert loaded.distil() is loaded.synset


def test_the_same_fit_opens_a_run_to_which_a_synset_was_added(run, command):
    command("distil", run)
    datamodel, _, facts = ddm.runs.run.fit(BARE, run, "serial")
    assert datamodel.distilled.synset is not None
    assert facts["synset_bytes"] == datamodel.synset.nbytes


def test_a_killed_distil_leaves_the_run_as_it_was_and_can_be_repeated(run, finished_run, monkeypatch, command):
    monkeypatch.setattr(store, "write_manifest", lambda *given: (_ for _ in ()).throw(Killed))
    datamodel, data = ddm.runs.run.open_run(run)
    with pytest.raises(Killed):
        ddm.runs.run.distil(run, datamodel, data)
    monkeypatch.undo()
    assert ddm.load(run).distilled.synset is None
    assert not verify(run).bad
    ddm.runs.run.distil(run, *ddm.runs.run.open_run(run))
    assert (run / "synset.safetensors").read_bytes() == (finished_run / "synset.safetensors").read_bytes()


def test_a_killed_fit_without_synset_resumes_to_the_same_responses(bare_run, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "write_manifest", lambda *given: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        ddm.runs.run.fit(BARE, tmp_path / "run", "serial")
    monkeypatch.undo()
    ddm.runs.run.fit(BARE, tmp_path / "run", "serial")
    for name in ("responses.safetensors", "partition.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (bare_run / name).read_bytes()


def test_a_report_of_a_run_without_synset_says_where_answers_come_from(run, command, tmp_path):
    pytest.importorskip("plotly")
    assert command("report", run, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Answers come from kept responses (" in page
    assert "This run has no synset yet" in page


# --- release ---


@pytest.fixture
def released(run, tmp_path, command):
    answer = command("distil", run, "--release", tmp_path / "released", "--json").json
    assert set(answer["files"]) == RELEASED
    return tmp_path / "released"


def test_a_released_run_has_no_responses_no_retrained_models_and_no_earlier_checkpoints(released, run):
    assert (run / "exact").is_dir()
    assert names(released) == RELEASED
    loaded = ddm.load(released)
    assert loaded.responses is None
    assert loaded.audited is None
    assert len(loaded.target.trajectory) == 1
    assert loaded.target.fingerprint() == ddm.load(run).target.fingerprint()
    assert not any("moment" in name for name in loaded.target.trajectory[0])


def test_a_released_run_answers_from_its_synset(released, run, digits, command):
    loaded, whole = ddm.load(released), ddm.load(run)
    x = digits.test.batch(slice(0, 9))[0]
    alone = ddm.DistilledDatamodel(
        whole.target, whole.partition, whole.synset, whole.class_synset, whole.settings, whole.data
    )
    assert torch.equal(loaded.outputs(x), alone.outputs(x))
    assert loaded.distilled.sentence.startswith("Answers come from the synset")
    assert not verify(released).bad
    for arguments in (("trace", released, "--index", 0), ("diagnose", released), ("verify", released)):
        assert command(*arguments).code == 0


def test_a_released_run_refuses_what_needs_the_training(released, digits, command, refused):
    assert_refused(command("audit", released, "--retrain", 2), "released without the checkpoints")
    assert_refused(command("trace", released, "--index", 0, "--samples", 2), "released without the checkpoints")
    with refused("released without the checkpoints"):
        ddm.load(released).target.trajectory.distances()


def test_a_released_run_can_be_saved_elsewhere(released, tmp_path):
    ddm.load(released).save(tmp_path / "elsewhere")
    assert names(tmp_path / "elsewhere") == RELEASED - {"summary.json"}
    assert not verify(tmp_path / "elsewhere").bad


def test_a_release_needs_a_new_or_empty_folder(run, tmp_path, command):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert_refused(command("distil", run, "--release", tmp_path / "mine"), "notes.txt", "empty folder")
    assert names(tmp_path / "mine") == {"notes.txt"}
    assert "synset.safetensors" not in names(run)  # refused before the work


@pytest.mark.parametrize("name", ["responses.safetensors", "exact/a.safetensors", "trajectory/00001.safetensors", "x"])
def test_anything_else_in_a_released_run_is_refused(released, name, refused):
    path = released / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with refused(name, "must not be released"):
        release.check_released(released)


def test_a_run_that_was_not_released_is_refused_as_a_release(released, refused):
    change_manifest(released, released=False)
    with refused("not a run for release"):
        release.check_released(released)


def test_a_trajectory_of_one_checkpoint_is_refused_unless_the_run_was_released(released, refused):
    change_manifest(released, released=False)
    with refused("at least two checkpoints"):
        ddm.load(released)


# --- runs of older versions ---


@pytest.fixture
def old(finished_run, tmp_path):
    """A run as older versions wrote it: with a synset, and without responses."""
    out = Path(shutil.copytree(finished_run, tmp_path / "old"))
    (out / "responses.safetensors").unlink()
    files = read_json(out / "manifest.json")["files"]
    change_manifest(out, files={name: known for name, known in files.items() if name != "responses.safetensors"})
    return out


def test_a_run_of_an_older_version_answers_from_its_synset(old, digits, command):
    loaded = ddm.load(old)
    assert loaded.responses is None
    assert loaded.outputs(digits.test.batch(slice(0, 3))[0]).isfinite().all()
    assert not verify(old).bad
    assert json.loads(command("trace", old, "--index", 0, "--json").out)["group"]
    facts = ddm.runs.run.fit(replace(CONFIG), old, "serial")[2]
    assert facts["synset_bytes"] > 0


def test_a_run_of_an_older_version_can_be_released(old, tmp_path, command):
    assert command("distil", old, "--release", tmp_path / "released").code == 0
    assert names(tmp_path / "released") == RELEASED


def test_a_run_with_unknown_files_and_figures_still_loads(run):
    (run / "later.json").write_text("{}")
    (run / "later.safetensors").write_bytes(b"x")
    change_manifest(run, later=3)
    write_json(run / "summary.json", read_json(run / "summary.json") | {"later": 3})
    assert ddm.load(run).responses is not None


def test_responses_that_the_manifest_does_not_list_are_not_read(old, finished_run):
    shutil.copy(finished_run / "responses.safetensors", old)
    assert ddm.load(old).responses is None
