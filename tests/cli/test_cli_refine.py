"""``ddm refine``, and the commands that answer with its help."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import assert_refused

import ddm
from ddm.truth.evidence import Evidence


@pytest.fixture(scope="module")
def refined(finished_run, tmp_path_factory):
    """A run with three retrainings."""
    out = tmp_path_factory.mktemp("refined") / "run"
    shutil.copytree(finished_run, out)
    datamodel, _ = ddm.runs.run.open_run(out)
    ddm.runs.run.refine(out, datamodel, retrain=3, engine="serial")
    return out


def printed(answer):
    """The JSON document of an answer. What it will retrain is said on standard error."""
    assert answer.code == 0
    return json.loads(answer.out)


def test_refine_says_what_it_does_and_stores_the_evidence(command, finished_run):
    shutil.copytree(finished_run, "run")
    found = printed(command("refine", "run", "--retrain", 3, "--engine", "serial", "--json"))
    assert (found["singles"], found["unions"], found["bases"], found["retrained"]) == (1, 2, 1, 3)
    assert len(Evidence.load(Path("run/evidence.safetensors"))) == 3
    said = command("refine", "run", "--retrain", 2, "--engine", "serial")
    assert "Retraining 2 times: 1 without one group each, 1 without several groups at a time." in said.err
    assert "now rest on 5 retrainings" in " ".join(said.out.split())
    assert "run is whole" in command("verify", "run").out.replace("'run'", "run")


def test_the_models_that_a_run_has_are_used_without_retraining(command, refined):
    shutil.copytree(refined, "run")
    evidence = Path("run/evidence.safetensors")
    before = evidence.read_bytes()
    evidence.unlink()
    answer = command("refine", "run", "--retrain", 0, "--json")
    assert answer.json["retrained"] == 3
    assert evidence.read_bytes() == before
    shutil.rmtree("run/exact")
    evidence.unlink()
    assert_refused(command("refine", "run", "--retrain", 0), "no retrained model yet")


def test_a_budget_buys_at_least_one_retraining(command, refined):
    shutil.copytree(refined, "run")
    assert printed(command("refine", "run", "--budget", "0.001s", "--engine", "serial", "--json"))["retrained"] == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--retrain", 2, "--budget", "1m"), "either --retrain or --budget"),
        (("--budget", "10"), "such as 10m"),
        (("--budget", "-1m"), "such as 10m"),
        (("--retrain", -1), "retrain"),
        (("--retrain", 10**7), "at most"),
        (("--index", 10**6), "no sample"),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_retrained(command, refined, options, told):
    shutil.copytree(refined, "run")
    files = sorted(Path("run/exact").iterdir())
    assert_refused(command("refine", "run", *options), told)
    assert sorted(Path("run/exact").iterdir()) == files


def test_general_retrainings_use_new_batch_orders(command, refined):
    shutil.copytree(refined, "run")
    found = printed(command("refine", "run", "--retrain", 2, "--general", "--engine", "serial", "--json"))
    assert (found["singles"], found["unions"], found["bases"]) == (2, 0, 1)
    assert set(ddm.load("run").evidence.orders) == {0, 1}


def test_answers_of_a_refined_run_have_intervals(command, refined):
    groups = command("attribute", refined, "--index", 3, "--json").json["groups"]
    assert all(group["low"][0] <= group["effect"][0] <= group["high"][0] for group in groups)
    shown = command("attribute", refined, "--index", 3).out
    assert "90 % interval" in " ".join(shown.split())
    assert command("trace", refined, "--index", 3, "--json").json["low"] is not None


def test_a_refined_model_can_be_unlearned_saved_and_loaded(command, refined, digits):
    answer = command("unlearn", refined, "--remove", 3, "--out", "model.safetensors")
    assert answer.code == 0
    x = digits.test.batch(slice(0, 5))[0]
    mask = ddm.load(refined).partition.mask(3)[None]
    expected = ddm.load(refined).outputs(x, mask)[0]
    assert (ddm.networks.load("model.safetensors")(x) - expected).abs().max() < 1e-5


def test_a_released_run_has_no_evidence(command, refined):
    answer = command("distil", refined, "--release", "shared", "--json")
    assert answer.code == 0
    names = {path.name for path in Path("shared").rglob("*")}
    assert "evidence.safetensors" not in names
    assert "exact" not in names
    assert ddm.load("shared").evidence is None


def test_evidence_of_another_run_is_refused(command, refined, tmp_path):
    shutil.copytree(refined, "run")
    evidence = Evidence.load(Path("run/evidence.safetensors"))
    foreign = Evidence(
        evidence.names,
        evidence.removed,
        evidence.orders,
        evidence.theta,
        evidence.fixed,
        {**evidence.origin, "target": "another"},
        evidence.spread,
    )
    foreign.save(Path("run/evidence.safetensors"))
    assert_refused(command("trace", "run", "--index", 3), "evidence")
    assert command("verify", "run").code == 2


def test_damaged_evidence_is_refused(command, refined):
    shutil.copytree(refined, "run")
    path = Path("run/evidence.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert_refused(command("attribute", "run", "--index", 3), "evidence.safetensors")
