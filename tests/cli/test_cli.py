"""The command line: one JSON document on standard output, or one sentence on standard error and exit code 2."""

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main
from command_results import CommandResult, run_command
from refusals import assert_refused

import ddm
import ddm.cli.main
import ddm.runs.config
import ddm.runs.run
from ddm import Recipe, Settings
from ddm.cli import main as cli
from ddm.compute.files import read_json
from ddm.compute.folders import lock_folder
from ddm.distil import paper

COMMANDS = [command.name for command in typer.main.get_group(cli.app).commands.values()]
SMALL = "--option width=4 --option depth=1 --epochs 3 --batch-size 16 "
SMALL += "--setting steps=3 --setting curvature=64 --setting bank=8"
FIT = f"fit digits --limit 60 {SMALL} --clusters 2 --seed 4".split()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The result of ``ddm fit`` and the folder of its run."""
    folder = tmp_path_factory.mktemp("cli")
    return run_command(*FIT, "--engine", "serial", "--json", "--out", "run", cwd=folder), folder / "run"


@pytest.fixture(scope="module")
def run(fitted):
    assert fitted[0].code == 0, fitted[0].err
    return fitted[1]


@pytest.fixture(scope="module")
def opened(run):
    return ddm.runs.run.open_run(run)


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """npz files as a user may bring them, most of them invalid."""
    folder = tmp_path_factory.mktemp("npz")
    images = np.random.default_rng(0).random((40, 6, 6)).astype(np.float32)
    labels = np.arange(40) % 4
    broken = images.copy()
    broken[3, 2, 1] = np.nan
    np.savez(folder / "good.npz", images=images, labels=labels)
    np.savez(folder / "labels.npz", images=images, labels=labels, classes=np.array(["a", "b", "c"]))
    np.savez(folder / "negative.npz", images=images, labels=labels - 1)
    np.savez(folder / "nan.npz", images=broken, labels=labels)
    np.savez(folder / "constant.npz", images=np.ones_like(images), labels=labels)
    np.savez(folder / "vectors.npz", x=images.reshape(40, 36), y=labels)
    return folder


# --- answers of the commands ---


def test_fit_prints_the_summary_of_the_run(fitted):
    answer, out = fitted
    assert answer.json == read_json(out / "summary.json") | {"run": "run", "audit": None}
    assert answer.json["groups"] == len(ddm.load(out).partition) == 20
    assert read_json(out / "manifest.json")["complete"]


def test_attribute_prints_the_answer_of_the_library(command, run, opened):
    datamodel, data = opened
    answer = command("attribute", run, "--index", 3, "--index", 5, "--json")
    assert answer.json == datamodel.attribute(data.test[[3, 5]]).to_dict() | {"audit": None}
    assert "raises" in answer.json["sign"]


def test_trace_prints_the_answer_of_the_library(command, run, opened):
    datamodel, data = opened
    answer = command("trace", run, "--index", 0, "--json")
    assert answer.json == datamodel.trace(data.test[0]).to_dict() | {"audit": None}


def test_unlearn_writes_the_network_that_the_library_gives(command, run, opened):
    datamodel, data = opened
    answer = command("unlearn", run, "--remove", "3/1", "--remove", "0", "--out", "x/model.safetensors", "--json")
    assert answer.json["removed"] == ["3/1", datamodel.partition.names[0]]
    assert answer.json["model"] == "x/model.safetensors"
    network, expected = ddm.networks.load("x/model.safetensors"), datamodel.counterfactual(["3/1", 0])
    x, y = data.test.batch()
    torch.testing.assert_close(network(x), expected(x))
    right = float((expected(x).argmax(1) == y).double().mean())
    assert answer.json["accuracy"]["test"]["before"] == datamodel.target.accuracy(data.test)
    assert answer.json["accuracy"]["test"]["after"] == pytest.approx(right)


def test_bad_input_ends_a_process_with_one_sentence_and_code_2(tmp_path):
    answer = run_command("fit", "imagenet", "--json", cwd=tmp_path)
    assert_refused(answer, "'imagenet'", "digits")
    assert os.listdir(tmp_path) == []


def test_without_json_answers_are_readable_text(command, run):
    said = command(*FIT, "--out", run)
    assert said.code == 0
    assert "ConvNet" in said.out
    assert "20 groups" in said.out
    attributed = command("attribute", run, "--index", 2, "--top", 3)
    assert "positive: removing the group raises the value" in " ".join(attributed.out.split())
    traced = command("trace", run, "--index", 2)
    assert "Class with the strongest effect" in traced.out
    assert "12 fine-tunings" in traced.out
    unlearnt = command("unlearn", run, "--remove", "3/1")
    assert "Without 3/1" in unlearnt.out
    assert os.listdir() == ["counterfactual.safetensors"]
    assert [answer.err for answer in (said, attributed, traced, unlearnt)] == [""] * 4


def test_text_shows_points_where_json_holds_fractions(command, run, opened):
    datamodel, data = opened
    (_, effect), *_ = datamodel.attribute(data.test[2], "probabilities").top(1)
    for question in ("attribute", "trace"):
        options = (question, run, "--index", 2, "--objective", "probabilities")
        assert "points" in command(*options).out
        assert "points" not in command(*options, "--json").out
    assert f"{100 * effect:+.1f}" in command("attribute", *options[1:], "--top", 1).out


def test_fitting_a_complete_run_again_changes_no_file(command, run):
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert command(*FIT, "--json", "--out", run).json["groups"] == 20
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files


def test_a_config_replays_to_the_same_bytes(command, run):
    command("fit", "--config", run / "config.json", "--out", "again", "--json").json  # noqa: B018 - checks the answer
    for name in ("config.json", "synset.safetensors", "synset-class.safetensors"):
        assert Path("again", name).read_bytes() == (run / name).read_bytes()


def test_without_an_index_a_question_is_about_the_complete_split(command, run, opened):
    datamodel, data = opened
    for split in ("train", "validation", "test"):
        answer = command("attribute", run, "--objective", "accuracy", "--split", split, "--json")
        assert answer.json == datamodel.attribute(data.split(split), "accuracy").to_dict() | {"audit": None}


def test_every_option_of_attribute_reaches_the_library(command, run, opened):
    datamodel, data = opened
    options = ["--design", "random", "--perturbations", 70, "--beta", "removed", "--seed", 3, "--output", "7"]
    answer = command("attribute", run, "--index", 1, "--objective", "probabilities", *options, "--json")
    expected = datamodel.attribute(
        data.test[[1]], "probabilities", design="random", perturbations=70, beta="removed", seed=3
    )
    assert answer.json == expected.on("7").to_dict() | {"audit": None}
    answer = command("attribute", run, "--index", 1, "--level", "class", "--json")
    assert answer.json == datamodel.attribute(data.test[1], level="class").to_dict() | {"audit": None}


def test_trace_searches_every_group_with_full(command, run, opened):
    datamodel, data = opened
    answer = command("trace", run, "--index", 4, "--objective", "loss", "--full", "--json")
    assert answer.json == datamodel.trace(data.test[4], "loss", full=True).to_dict() | {"audit": None}
    assert answer.json["fine_tunings"] == 20


def test_plots_and_effects_are_written_to_the_given_paths(command, run, opened):
    datamodel, data = opened
    for name in ("a.png", "deep/b.svg", "c.pdf", "plain"):
        answer = command("attribute", run, "--index", 1, "--plot", name, "--save", f"{name}.csv", "--json")
        assert answer.code == 0, answer.err
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert Path("plain").read_bytes().startswith(b"\x89PNG")
    assert Path("c.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in Path("deep/b.svg").read_bytes()
    with Path("a.png.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = datamodel.attribute(data.test[1])
    assert [row["group"] for row in rows] == [name for name, _ in expected.top(20)]
    assert [float(row["effect on prediction"]) for row in rows] == pytest.approx(
        [effect for _, effect in expected.top(20)]
    )
    command("attribute", run, "--index", 1, "--save", "effects.json")
    assert read_json(Path("effects.json")) == expected.to_dict()
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_file_names_with_brackets_are_printed_unchanged(command, run):
    answer = command("unlearn", run, "--remove", "3/1", "--out", "[/x].safetensors")
    assert answer.code == 0, answer.err
    assert "[/x].safetensors" in answer.out
    assert os.listdir("[") == ["x].safetensors"]


def test_questions_about_a_run_saved_from_python_need_the_name_of_its_data(command, npz, tmp_path):
    name = f"npz:{npz / 'good.npz'}"
    data = ddm.datasets.load(name)
    target = ddm.train(ddm.networks.ConvNet((1, 6, 6), 4, width=4, depth=1), data.train, Recipe(epochs=2))
    datamodel = ddm.DistilledDatamodel.fit(target, data.train, partition="class", steps=1)
    datamodel.save(tmp_path / "run")
    answer = command("attribute", "run", "--data", name, "--index", 0, "--json")
    assert answer.json == datamodel.attribute(data.test[0]).to_dict() | {"audit": None}
    assert_refused(command("attribute", "run", "--index", 0), "--data")
    assert_refused(command("attribute", "run", "--index", 0, "--data", "digits"), "other training data")


def test_notes_go_to_standard_error(command, npz):
    answer = command("fit", f"npz:{npz}/good.npz", *SMALL.split(), "--limit", 8, "--clusters", 3, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["groups"] == 8
    lines = answer.err.splitlines()
    assert all(line.startswith("note: ") for line in lines)
    assert any("too few distinct samples for 3 clusters" in line for line in lines)


# --- options of fit ---


@pytest.fixture
def wanted(command, monkeypatch):
    """Returns the config that ``ddm fit`` builds from its options, without fitting."""

    def config(*options):
        seen = []

        def fit(config, out, engine):
            seen.append((config, out))
            raise ddm.InputError("enough.")

        with monkeypatch.context() as patch:
            patch.setattr(ddm.runs.run, "fit", fit)
            answer = command("fit", *options)
        assert answer.err == "ddm: enough.\n"
        return seen[0]

    return config


def test_without_options_everything_is_the_default(wanted):
    config, out = wanted()
    assert config == ddm.runs.config.Config(options={"seed": 0})
    assert out == Path("runs/digits")


def test_a_fit_without_synset_keeps_its_responses(wanted, command):
    for options in (("--no-synset",), ("--setting", "synset=false")):
        assert wanted(*options)[0].settings == ddm.Settings(synset=False)
    assert_refused(command("fit", "--no-synset", "--matching", "reverse"), "synset")


def test_every_option_of_fit_reaches_the_config(wanted):
    options = (
        "mnist --out o --root r --limit 9 --size 7 --model resnet18ap --option width=8 --option init=xavier --epochs 2 "
        "--lr 0.5 --batch-size 3 --momentum 0.25 --optimizer sgd --weight-decay 0.125 --schedule step --augment flip "
        "--checkpoint-every 6 --amp --nesterov --warmup 1 --clip-norm 0.75 --clusters 4 --partition sequence "
        "--features hf:x --matching forward --setting ipc=2 --setting step-size=0.5 --setting lr=1e-2 "
        "--setting labels=hard --seed 11 --device cpu"
    )
    config, out = wanted(*options.split())
    assert out == Path("o")
    assert config == ddm.runs.config.Config(
        data="mnist",
        root="r",
        limit=9,
        size=7,
        model="resnet18ap",
        options={"width": 8, "init": "xavier", "seed": 11},
        recipe=Recipe(
            2, 0.5, 3, 0.25, 0.125, "step", "flip", 6, seed=11, amp=True, nesterov=True, warmup=1, clip_norm=0.75
        ),
        partition="sequence",
        clusters=4,
        features="hf:x",
        settings=Settings(matching="forward", ipc=2, step_size=0.5, lr=0.01, labels="hard", seed=11),
        device="cpu",
    )


@pytest.mark.parametrize("options", [(), ("--plan",)])
def test_mixed_precision_is_refused_where_it_would_kill_the_process(command, no_bfloat16, options):
    answer = command("fit", "digits", "--limit", 60, "--amp", "--out", "run", *options)
    assert_refused(answer, "mixed precision", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")
    assert os.listdir() == []


@pytest.mark.parametrize(("model", "lr"), [("convnet", 0.1), ("alexnet", 0.003), ("simplevit", 0.01)])
def test_the_default_learning_rate_depends_on_the_network(wanted, model, lr):
    config, _ = wanted("--model", model)
    assert config.to_dict()["recipe"]["lr"] == config.recipe.lr == lr
    assert wanted("--model", model, "--lr", "0.3")[0].recipe.lr == 0.3


def test_the_paper_preset_has_the_papers_settings_and_single_options_override_it(wanted):
    recipe, settings = paper("digits", "convnet")
    config, _ = wanted("--preset", "paper")
    assert (config.recipe, config.settings) == (recipe, settings)
    config, _ = wanted("--preset", "paper", "--epochs", "3", "--setting", "labels=soft")
    assert config.recipe.epochs == 3
    assert config.recipe.lr == recipe.lr
    assert config.settings.labels == "soft"
    assert config.settings.optimizer == settings.optimizer


@pytest.mark.parametrize("setting", ["augment=none", "step-size=none", "step_size=none"])
def test_a_setting_may_be_none(wanted, setting):
    config, _ = wanted("--preset", "paper", "--setting", setting)
    assert config.settings.augment == ("none" if "augment" in setting else "shift")
    assert (config.settings.step_size is None) == ("step" in setting)


@pytest.mark.parametrize("option", ["norm=none", "pooling=none"])
def test_an_option_of_the_network_may_be_none(wanted, option):
    config, _ = wanted("--option", option)
    name = option.removesuffix("=none")
    assert ddm.networks.build("convnet", (1, 8, 8), 10, **config.options).spec[name] == "none"


def test_a_seed_for_one_stage_overrides_the_general_seed(wanted):
    config, _ = wanted("--seed", "3", "--option", "seed=5", "--setting", "seed=6")
    assert (config.options["seed"], config.recipe.seed, config.settings.seed) == (5, 3, 6)


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("imagenet", ("'imagenet'", "digits")),
        ("mnist", ("mnist", "--root")),
        ("mnist --root empty", ("mnist", "empty", "--root")),
        ("cifar10 --root empty", ("cifar10", "empty")),
        ("cifar10 --root missing", ("cifar10", "missing")),
        ("folder:missing", ("missing",)),
        ("folder:empty", ("empty",)),
        ("npz:missing.npz", ("missing.npz",)),
        ("npz:{npz}/labels.npz", ("labels from 0 to 3", "0 to 2")),
        ("npz:{npz}/negative.npz", ("labels from -1",)),
        ("npz:{npz}/nan.npz", ("NaN",)),
        ("npz:{npz}/constant.npz", ("constant",)),
        ("npz:{npz}/vectors.npz", ("36",)),
        ("digits --root empty", ("--root",)),
        ("digits --model vgg", ("'vgg'", "convnet")),
        ("digits --option speed=3", ("'speed'", "width")),
        ("digits --option width", ("name=value", "'width'")),
        ("digits --option width=0", ("width",)),
        ("digits --option width=wide", ("width", "wide")),
        ("digits --option norm=spectral", ("norm", "spectral")),
        ("digits --option shape=3", ("shape",)),
        ("digits --option classes=3", ("classes",)),
        ("digits --option name=x", ("name",)),
        ("digits --clusters 0", ("clusters", "0")),
        ("digits --clusters -3", ("clusters", "-3")),
        ("digits --clusters two", ("--clusters",)),
        ("digits --clusters 1000000000000", ("clusters", "at most")),
        (f"digits --epochs {10**30}", ("epochs", "at most")),
        (f"digits --epochs {10**30} --plan", ("epochs", "at most")),
        ("digits --batch-size 10000000000", ("batch size", "at most")),
        ("digits --checkpoint-every 10000000000", ("checkpoint every", "at most")),
        ("digits --limit 10000000000", ("limit", "at most")),
        ("digits --size 5000", ("size", "4096")),
        ("digits --setting bank=10000000", ("bank", "at most")),
        ("digits --setting steps=1000000000", ("steps", "at most")),
        ("digits --seed 4294967296", ("--seed",)),
        ("digits --clusters 1.5", ("--clusters",)),
        ("digits --limit 0", ("limit",)),
        ("digits --epochs 0", ("epochs",)),
        ("digits --epochs many", ("--epochs",)),
        ("digits --lr 0", ("lr",)),
        ("digits --lr nan", ("lr",)),
        ("digits --lr fast", ("--lr",)),
        ("digits --momentum 1", ("momentum",)),
        ("digits --batch-size 0", ("batch size",)),
        ("digits --checkpoint-every 0", ("checkpoint",)),
        ("digits --schedule linear", ("'linear'", "cosine")),
        ("digits --augment rotate", ("'rotate'", "flip")),
        ("digits --partition spectral", ("'spectral'", "kmeans")),
        ("digits --groups missing.txt", ("missing.txt",)),
        ("digits --groups short.txt", ("short.txt", "2 lines")),
        ("digits --features resnet", ("'resnet'", "hf:NAME")),
        ("digits --matching sideways", ("'sideways'", "reverse")),
        ("digits --preset nature", ("'nature'", "paper")),
        ("digits --setting speed=3", ("speed", "ipc")),
        ("digits --setting steps", ("name=value", "'steps'")),
        ("digits --setting ipc=0", ("ipc",)),
        ("digits --setting ipc=two", ("ipc", "two")),
        ("digits --setting ipc=1.5", ("ipc", "1.5")),
        ("digits --setting steps=2.5", ("steps", "2.5")),
        ("digits --setting steps=-1", ("steps",)),
        ("digits --setting lr=nan", ("lr",)),
        ("digits --setting lr=fast", ("lr", "fast")),
        ("digits --setting memory=0", ("memory",)),
        ("digits --setting distance=manhattan", ("distance", "'manhattan'", "cosine")),
        ("digits --setting step-size=-1", ("step size",)),
        ("digits --seed -1", ("--seed",)),
        ("digits --device abacus", ("abacus",)),
        ("digits --config missing.json", ("missing.json",)),
        ("digits --config broken.json", ("broken.json",)),
        ("digits --config list.json", ("config",)),
        ("digits --config text.json", ("config",)),
        ("digits --speed 3", ("--speed",)),
        ("digits mnist", ("mnist",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fit_refuses_bad_input_before_it_writes_anything(command, npz, options, words):
    Path("empty").mkdir()
    Path("short.txt").write_text("a\nb\n")
    Path("broken.json").write_text("{")
    Path("list.json").write_text("[]")
    Path("text.json").write_text('"text"')
    before = sorted(os.listdir())
    given = [word.format(npz=npz) for word in options.split()]
    answer = command("fit", "--epochs", 1, "--limit", 30, "--out", "out", *given)
    assert_refused(answer, *words)
    assert sorted(os.listdir()) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_fit_refuses_a_device_that_this_machine_lacks(command):
    assert_refused(command(*["fit", "--epochs", "1", "--limit", "30", "--device", "cuda", "--out", "out"]), "cuda")
    assert os.listdir() == []


@pytest.mark.parametrize("out", ["file", "file/run", "/proc/nowhere/run"])
def test_fit_refuses_a_folder_that_cannot_be_written(command, out):
    Path("file").write_text("mine")
    assert_refused(command(*FIT, "--out", out), out)
    assert Path("file").read_text() == "mine"
    assert os.listdir() == ["file"]


@pytest.mark.parametrize(
    "words", [FIT, ("demo",), ("bench", "fidelity", "--scale", "tiny")], ids=lambda words: words[0]
)
def test_fit_does_not_write_into_a_folder_with_other_files(command, words):
    Path("mine/parts").mkdir(parents=True)
    Path("mine/summary.json").write_text("mine")
    assert_refused(command(*words, "--out", "mine"), "mine", "parts", "empty folder")
    assert sorted(os.listdir("mine")) == ["parts", "summary.json"]
    assert Path("mine/summary.json").read_text() == "mine"


@pytest.mark.parametrize(
    "words", ["fit", "demo", "bench fidelity", "report {run}", "unlearn {run} --remove 0"], ids=lambda words: words
)
def test_an_empty_output_name_is_refused(command, run, words):
    assert_refused(command(*words.format(run=run).split(), "--out", ""), "empty")
    assert os.listdir() == []


def test_fit_refuses_the_folder_of_another_run(command, run):
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert_refused(command("fit", "digits", "--limit", 50, "--out", run), "limit", "60", "50", "--out")
    assert_refused(command(*FIT, "--setting", "ipc=2", "--out", run), "settings", "ipc: 1 there, 2 now")
    assert_refused(command(*FIT, "--model", "resnet18ap", "--out", run))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("attribute {run} --objective beauty", ("'beauty'", "prediction", "f1")),
        ("attribute {run} --split holdout", ("'holdout'", "validation")),
        ("attribute {run} --index 60", ("60", "0 to 59")),
        ("attribute {run} --index 0 --index -1", ("-1", "0 to 59")),
        ("attribute {run} --index first", ("--index",)),
        ("attribute {run} --level pixel", ("'pixel'", "class")),
        ("attribute {run} --design latin", ("'latin'", "random")),
        ("attribute {run} --design random --perturbations 3", ("3 perturbations", "20 groups")),
        ("attribute {run} --design random --perturbations 0", ("perturbation",)),
        ("attribute {run} --beta gamma", ("'gamma'", "uniform")),
        ("attribute {run} --output dog", ("'dog'",)),
        ("attribute {run} --design random --perturbations 1000000000", ("perturbations", "at most")),
        ("audit {run} --retrain 1000000000", ("20 groups", "--retrain")),
        ("audit {run} --unions 1000000000", ("unions", "at most")),
        ("audit {run} --seeds 1000000000", ("seeds", "at most")),
        ("audit {run} --unions 1000 --seeds 1000", ("retrainings", "at most")),
        ("attribute {run} --objective probabilities --output dog", ("'dog'", "0, 1, 2")),
        ("attribute {run} --top 0", ("--top",)),
        ("attribute {run} --plot picture.bmp", ("bmp", "png")),
        ("attribute {run} --plot file/picture.png", ("file/picture.png",)),
        ("attribute {run} --save file/effects.json", ("file/effects.json",)),
        ("attribute {run} --save file/effects.csv", ("file/effects.csv",)),
        ("attribute {run} --data mnist", ("mnist",)),
        ("attribute {run} --root file", ("--root",)),
        ("attribute {run} --device abacus", ("abacus",)),
        ("attribute missing", ("missing", "ddm fit")),
        ("attribute file", ("file", "ddm fit")),
        ("attribute", ("RUN",)),
        ("trace {run} --objective beauty", ("'beauty'",)),
        ("trace {run} --index 99", ("99",)),
        ("trace missing", ("missing", "ddm fit")),
        ("unlearn {run}", ("--remove",)),
        ("unlearn {run} --remove 3/9", ("'3/9'", "0/0", "9/1")),
        ("unlearn {run} --remove 20", ("'20'", "0 to 19")),
        ("unlearn {run} --remove 0 --remove cat", ("'cat'",)),
        ("unlearn {run} --remove 0 --out file/model.safetensors", ("file/model.safetensors",)),
        ("unlearn {run} --remove 0 --out .", ()),
        ("unlearn {run}" + "".join(f" --remove {group}" for group in range(20)), ("every group", "keep at least one")),
        ("unlearn missing --remove 0", ("missing", "ddm fit")),
        ("explain {run}", ("explain",)),
        ("--speed", ("--speed",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_questions_are_refused(command, run, options, words):
    Path("file").write_text("mine")
    assert_refused(command(*[word.format(run=run) for word in options.split()]), *words)
    assert Path("file").read_text() == "mine"
    assert os.listdir() == ["file"]


@pytest.mark.parametrize("name", ["trace", "unlearn"])
def test_commands_without_randomness_have_no_seed_option(command, name):
    assert "--seed" not in command(name, "--help").out


def test_nothing_is_written_if_one_of_two_files_cannot_be_written(command, run):
    assert_refused(command("attribute", run, "--index", 0, "--save", "effects.json", "--plot", "picture.bmp"), "bmp")
    assert os.listdir() == []


@pytest.mark.parametrize(
    "command_line", ["attribute copy --index 0", "trace copy --index 0", "unlearn copy --remove 0"]
)
def test_damaged_and_incomplete_runs_are_refused(command, run, command_line):
    for name in ("manifest.json", "config.json", "synset.safetensors", "trajectory/00001.safetensors"):
        copy = Path(shutil.copytree(run, "copy"))
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) // 2])
        assert_refused(command(*command_line.split()), name)
        (copy / name).unlink()
        assert_refused(command(*command_line.split()), "copy")
        shutil.rmtree(copy)
    copy = Path(shutil.copytree(run, "copy"))
    (copy / "manifest.json").write_text(json.dumps({"format": 1, "complete": False}))
    assert_refused(command(*command_line.split()), "not complete")


def test_a_run_whose_data_has_changed_is_refused(command, npz):
    shutil.copy(npz / "good.npz", "mine.npz")
    assert command("fit", "npz:mine.npz", *SMALL.split(), "--clusters", 1, "--out", "run").code == 0
    np.savez("mine.npz", images=np.random.default_rng(1).random((40, 6, 6)), labels=np.arange(40) % 4)
    assert_refused(command("trace", "run", "--index", 0), "other training data")
    os.unlink("mine.npz")
    assert_refused(command("trace", "run", "--index", 0), "mine.npz")


def test_a_message_of_several_lines_is_printed_on_one_line(command, monkeypatch):
    def refusing(*_):
        raise ddm.InputError("a library said:\n  this\n  and that.")

    monkeypatch.setattr(ddm.runs.run, "fit", refusing)
    assert_refused(command("fit"), "a library said: this and that.")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_running_out_of_memory_prints_a_sentence_that_says_what_to_lower(command, monkeypatch, error):
    def exhausted(*_):
        raise error

    monkeypatch.setattr(ddm.runs.run, "fit", exhausted)
    assert_refused(command("fit"), "memory=1", "--batch-size", "--engine serial")


def test_a_full_disk_prints_a_sentence_that_says_how_to_resume(command, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/dev/shm/x")

    monkeypatch.setattr(ddm.runs.run, "fit", full)
    assert_refused(command("fit"), "no disk space left", "the same command again")


def test_a_run_that_another_command_has_locked_is_refused(command, run):
    with lock_folder(run):
        assert_refused(command(*FIT, "--out", run), "another ddm is working", str(run))
        assert_refused(command("audit", run), "another ddm is working", str(run))


def test_an_interrupted_command_prints_one_line_and_exits_with_130(command, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ddm.runs.run, "fit", interrupted)
    answer = command("fit")
    assert answer.code == 130
    assert answer.out == ""
    assert "interrupted" in answer.err
    assert answer.err.count("\n") == 1


# --- help ---


def test_every_command_has_help_and_the_version_is_printed(command):
    assert command("--version") == CommandResult(0, f"{ddm.__version__}\n", "")
    for name in ("demo", "fit", "attribute", "trace", "unlearn"):
        assert name in command("--help").out
        answer = command(name, "--help")
        assert answer.code == 0
        assert "Usage" in answer.out
        assert answer.err == ""


@pytest.mark.parametrize("name", [*COMMANDS, None])
def test_help_names_the_values_of_options_instead_of_their_types(command, name):
    answer = command(*([name] if name else []), "--help")
    assert "--help" in answer.out
    for kind in ("bool", "<int", "<float", "<str", "<list", "<path"):
        assert kind not in answer.out.lower()


def test_a_value_for_a_flag_is_refused_without_naming_a_type(command):
    answer = command("verify", "run", "--json=yes")
    assert answer.code == 2
    assert "--json" in answer.err
    assert "bool" not in answer.err.lower()


@pytest.mark.parametrize("words", [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_does_not_import_heavy_libraries(words):
    """Each of these libraries takes longer to import than the rest of the command line together."""
    heavy = ("torch", "numpy", "pandas", "sklearn", "scipy", "matplotlib")
    code = (
        f"import sys, ddm.cli.main; sys.argv = ['ddm', *{words}]"
        "\ntry: ddm.cli.main.main()"
        f"\nfinally: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == "[]\n"


def test_without_a_command_help_is_printed_and_no_error(command):
    answer = command()
    assert "Usage" in answer.out
    assert answer.err == ""
