"""``ddm audit``, and how other commands show its result."""

import os
import shutil
from pathlib import Path

import pytest
from refusals import assert_refused

import ddm.runs.run
from ddm.compute.files import add_checksum, hash_file, read_json, write_json
from ddm.truth.audit import Audit

OPTIONS = "--limit 60 --option width=4 --option depth=1 --epochs 2 --batch-size 16 "
OPTIONS += "--partition class --setting curvature=64 --setting bank=8"
UNAUDITED = "Not audited: ddm audit RUN says how far this can be trusted."
ANSWERING = {
    "attribute": ("attribute", "--index", 3),
    "trace": ("trace", "--index", 3),
    "unlearn": ("unlearn", "--remove", 3),
}


@pytest.fixture(scope="module")
def plain(finished_run):
    """A run without an audit."""
    return finished_run


@pytest.fixture(scope="module")
def audited(plain, tmp_path_factory):
    """A run with an audit."""
    out = tmp_path_factory.mktemp("audited") / "run"
    shutil.copytree(plain, out)
    datamodel, data = ddm.runs.run.open_run(out)
    ddm.runs.run.audit(out, datamodel, data, retrain=2, unions=2, seeds=2, seed=0)
    return out


def ask(command, what, run, *options):
    name, *rest = ANSWERING[what]
    return command(name, run, *rest, *options)


def test_audit_prints_one_json_document_and_stores_it_in_the_run(command, plain):
    shutil.copytree(plain, "run")
    answer = command("audit", "run", "--retrain", 2, "--unions", 2, "--plot", "audit.png", "--json")
    assert answer.err == ""
    found = Audit.from_dict(answer.json)
    assert answer.json["sentence"] == found.sentence
    assert set(found.figures["same run"]) == {"oracle_fraction", "rho", "rho_global", "lds", "slope"}
    assert (len(found.groups), found.unions, found.orders, found.trainings) == (2, 2, 2, 10)
    assert read_json(Path("run/audit.json")) == add_checksum(
        answer.json | {"of": hash_file(Path("run/responses.safetensors"))}
    )
    assert ddm.load("run").audited == found
    assert len(os.listdir("run/exact")) == 10
    assert Path("audit.png").read_bytes().startswith(b"\x89PNG")
    again = command("audit", "run", "--retrain", 2, "--unions", 2, "--json")
    assert again.json == answer.json  # the seconds are the same too, because nothing was trained again


def test_audit_prints_its_figures_and_its_sentence_as_text(command, audited):
    short, answer = (command("audit", audited, "--retrain", 2, "--unions", 2, *more) for more in ((), ("--verbose",)))
    said = " ".join(answer.out.split())
    assert answer.code == 0
    assert answer.err == ""
    assert "10 retrainings" in short.out
    assert "ceiling" not in short.out
    for words in ("same run", "other run", "finding the group", "size of effects", "ceiling", "10 retrainings"):
        assert words in said
    assert f"Audit: {ddm.load(audited).audited.sentence}" in answer.out


@pytest.mark.parametrize("what", ANSWERING)
def test_every_answer_says_how_far_to_trust_it(command, plain, audited, what):
    before, after = (ask(command, what, run) for run in (plain, audited))
    assert UNAUDITED in before.out
    found = ddm.load(audited).audited
    assert f"Audit: {found.sentence}" in after.out
    assert UNAUDITED not in after.out
    before, after = (ask(command, what, run, "--json").json for run in (plain, audited))
    assert before.pop("audit") is None
    assert Audit.from_dict(after.pop("audit")) == found
    assert before.keys() == after.keys()  # the retrainings of the audit change the values
    if what == "attribute":
        assert before["intervals"] is None
        assert "4 retrainings" in after["intervals"]


def test_a_complete_run_that_is_fitted_again_keeps_its_audit(command, audited):
    answer = command("fit", "digits", *OPTIONS.split(), "--out", audited, "--json")
    assert Audit.from_dict(answer.json["audit"]) == ddm.load(audited).audited


def test_the_audit_of_other_responses_is_ignored(command, audited):
    shutil.copytree(audited, "run")
    datamodel, _ = ddm.runs.run.open_run(Path("run"))
    datamodel.audited = None
    datamodel.responses.clusters.scales.mul_(2)
    datamodel.save("run")
    assert Path("run/audit.json").exists()
    assert ask(command, "trace", "run", "--json").json["audit"] is None
    assert UNAUDITED in ask(command, "trace", "run").out


@pytest.mark.parametrize("change", [None, {"figures": {}}, {"orders": "many"}], ids=["not JSON", "figures", "orders"])
def test_a_broken_audit_file_is_refused_with_one_sentence(command, audited, change):
    shutil.copytree(audited, "run")
    path = Path("run/audit.json")
    if change is None:
        path.write_text(path.read_text()[:-20])
    else:
        write_json(path, read_json(path) | change)
    for what in ANSWERING:
        assert_refused(ask(command, what, "run"), "again")
    assert os.listdir() == ["run"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--retrain 1", ("--retrain",)),
        ("--seeds 1", ("--seeds",)),
        ("--unions -1", ("--unions",)),
        ("--retrain many", ("--retrain",)),
        ("--plot audit.jpg", ("png", "jpg")),
        ("--device abacus", ("abacus",)),
        ("--data mnist", ("mnist",)),
    ],
)
def test_audit_refuses_bad_input_before_it_trains(command, plain, options, words):
    assert_refused(command("audit", plain, *options.split()), *words)
    assert not (plain / "exact").exists()
    assert not (plain / "audit.json").exists()
    assert os.listdir() == []


def test_audit_needs_a_run(command):
    assert_refused(command("audit", "missing"), "missing", "ddm fit")
