"""Tables and texts on the command line: fit, trace, attribute and the other commands."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from refusals import assert_refused
from sklearn import datasets as sklearn_datasets

import ddm
from ddm.cli import main as cli
from ddm.compute.files import read_json

SMALL = [
    "--option",
    "width=8",
    "--epochs",
    "3",
    "--setting",
    "curvature=64",
    "--setting",
    "bank=16",
    "--engine",
    "serial",
    "--clusters",
    "2",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables: wine by kind, diabetes by number, and texts by topic."""
    folder = tmp_path_factory.mktemp("tables")
    wine = sklearn_datasets.load_wine(as_frame=True).frame
    wine["cellar"] = np.where(np.arange(len(wine)) % 2, "north", "south")
    wine["target"] = np.array(["red", "rose", "white"])[wine["target"]]
    wine.to_csv(folder / "wine.csv", index=False)
    sklearn_datasets.load_diabetes(as_frame=True).frame[::4].to_csv(folder / "diabetes.csv", index=False)
    words = np.array(["sea", "hill", "fire", "wind", "tree", "rock"])
    drawn = np.random.default_rng(0).choice(words, (90, 7))
    topics = [words[i % 2] for i in range(90)]
    texts = [f"{topic} {' '.join(rest)}" for topic, rest in zip(topics, drawn, strict=True)]
    pd.DataFrame({"text": texts, "topic": topics, "author": ["ann", "bob", "cem"] * 30}).to_csv(
        folder / "texts.csv", index=False
    )
    return folder


def fitted(folder, name, *options):
    """The summary and the folder of a run, made in this process."""
    words = ["ddm", "fit", f"csv:{name}.csv", *options, *SMALL, "--out", name]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", words)
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # the command replaces it
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return read_json(folder / name / "summary.json"), folder / name


@pytest.fixture(scope="module")
def wine(folder):
    return fitted(folder, "wine", "--label", "target", "--group-by", "cellar")


@pytest.fixture(scope="module")
def diabetes(folder):
    return fitted(folder, "diabetes", "--label", "target", "--task", "regression")


@pytest.fixture(scope="module")
def texts(folder):
    options = ("--text", "text", "--label", "topic", "--group-by", "author", "--option", "depth=1", "--no-synset")
    return fitted(folder, "texts", *options)


def test_a_table_gets_an_mlp_and_groups_of_a_column(wine):
    answer, run = wine
    assert answer["network"] == "MLP"
    assert set(answer["accuracy"]) == {"train", "validation", "test"}
    assert ddm.load(run).partition.names == ("north", "south")
    assert read_json(run / "config.json")["recipe"]["optimizer"] == "sgd"


def test_a_regression_is_judged_by_its_error_and_trained_by_adamw(diabetes):
    answer, run = diabetes
    assert answer["task"] == "regression"
    assert 0 < answer["absolute-error"]["test"] < 200
    assert "accuracy" not in answer
    recipe = read_json(run / "config.json")["recipe"]
    assert (recipe["optimizer"], recipe["lr"]) == ("adamw", 0.001)
    assert ddm.load(run).target.network.scale > 30


def test_a_text_gets_a_transformer_of_the_vocabulary_of_the_training_texts(texts):
    answer, run = texts
    assert answer["network"] == "TextTransformer"
    assert read_json(run / "manifest.json")["spec"]["vocabulary"] == 2 + 6
    assert ddm.load(run).partition.names == ("ann", "bob", "cem")


def test_trace_and_attribute_say_what_a_row_is_and_what_the_model_says_about_it(command, wine):
    run = wine[1]
    for question in ("trace", "attribute"):
        said = " ".join(command(question, run, "--index", 3).out.split())
        assert "Sample 3 of the test split, row" in said
        assert "alcohol" in said
        assert "It differs most from training rows labelled" in said
        assert "Its label is" in said
        assert "The model says" in said
        assert "Sample 3" not in command(question, run).out


def test_trace_shows_training_texts_of_the_group(command, texts):
    said = " ".join(command("trace", texts[1], "--index", 0, "--samples", 2).out.split())
    assert "Its label is" in said
    assert "what it is" in said


def test_a_regression_answers_in_the_unit_of_its_label(command, diabetes):
    run = diabetes[1]
    said = command("trace", run, "--index", 0, "--objective", "value").out
    assert "Its target is" in said
    assert "%" not in said.split("Group with")[0]
    unlearnt = command("unlearn", run, "--remove", "0").out
    assert "test mean absolute error" in unlearnt
    assert "test R²" in unlearnt
    assert_refused(command("diagnose", run), "regression")


def test_a_config_replays_a_run_of_a_table(command, texts):
    command("fit", "--config", texts[1] / "config.json", "--out", "again", "--engine", "serial")
    assert ddm.load("again").target.fingerprint() == ddm.load(texts[1]).target.fingerprint()


def test_a_run_of_a_table_is_verified_and_planned(command, wine, folder):
    assert command("verify", wine[1], "--json").json["whole"]
    plan = command("fit", f"csv:{folder}/diabetes.csv", "--label", "target", "--task", "regression", *SMALL, "--plan")
    assert "This fit would take" in plan.out


def test_notes_about_columns_are_said_by_the_fit_alone(command, folder, tmp_path):
    table = pd.read_csv(folder / "wine.csv")
    table.loc[::5, "hue"] = np.nan
    table.to_csv(tmp_path / "holes.csv", index=False)
    options = ("--label", "target", "--no-synset", "--partition", "class", "--drop", "cellar")
    assert "hue 20.2%" in command("fit", "csv:holes.csv", *options, *SMALL, "--out", "run").err
    assert command("trace", "run", "--index", 0).err == ""


WRONG = {
    "no label": ((), ("--label",)),
    "another column": (("--label", "colour"), ("no column 'colour'", "alcohol")),
    "a number": (("--label", "alcohol"), ("--task regression",)),
    "a small vocabulary": (("--label", "target", "--text", "cellar", "--option", "vocabulary=3"), ("token ids",)),
    "another network": (("--label", "target", "--model", "convnet"), ("mlp",)),
    "both groups": (("--label", "target", "--group-by", "cellar", "--groups", "wine.csv"), ("--group-by",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_of_a_table_end_in_one_sentence(case, command, folder):
    options, words = WRONG[case]
    options = [str(folder / word) if word == "wine.csv" else word for word in options]
    assert_refused(command("fit", f"csv:{folder}/wine.csv", *options, *SMALL, "--out", "run"), *words)


def test_options_of_a_table_are_refused_for_images_and_a_missing_file_is_named(command):
    assert_refused(command("fit", "digits", "--label", "x"), "--label", "csv:PATH")
    assert_refused(command("fit", "csv:absent.csv", "--label", "x"), "absent.csv")
