"""Answers as tables and files: every answer with a data frame is written as JSON, CSV and Parquet."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from ddm.answers import saving


@pytest.fixture(scope="module")
def answers(refined, digits):
    question = digits.test[[3]]
    return {
        "attribution": refined.attribute(question, "loss"),
        "trace": refined.trace(question, "loss"),
        "shares": refined.shares(question, 4, "loss"),
        "diagnosis": refined.diagnose(digits.validation),
    }


@pytest.mark.parametrize("name", ["attribution", "trace", "shares", "diagnosis"])
def test_every_answer_is_written_as_json_csv_and_parquet(answers, name, tmp_path):
    answer = answers[name]
    for suffix in ("json", "csv", "parquet"):
        answer.save(tmp_path / f"answer.{suffix}")
    table = pd.read_parquet(tmp_path / "answer.parquet")
    assert list(table.columns) == list(pd.read_csv(tmp_path / "answer.csv").columns)
    assert len(table) == len(answer.to_dataframe())
    assert json.loads((tmp_path / "answer.json").read_text()).keys() == answer.to_dict().keys()


def test_a_trace_has_a_row_for_every_class_and_group_that_was_searched(answers):
    found, table = answers["trace"], answers["trace"].to_dataframe()
    assert (table["level"] == "class").sum() == len(found.classes)
    groups = table[table["level"] == "group"]
    assert groups["name"].tolist() == [name for name, _ in found.clusters.top(len(found.clusters))]
    assert {"low", "high"} <= set(table.columns)


def test_a_verified_trace_shows_the_effects_by_retraining(answers):
    found = answers["trace"]
    exact = found.clusters.of(found.clusters.order()[:2])
    table = replace(found, verified=exact).to_dataframe()
    known = table.dropna(subset=["retrained"])
    assert dict(zip(known["name"], known["retrained"], strict=True)) == pytest.approx(dict(exact.top(2)))


def test_tables_of_samples_name_them(datamodel, digits):
    named = replace(digits.train, ids=tuple(f"pictures/{row}.png" for row in range(len(digits.train))))
    shares = datamodel.shares(digits.test[[3]], 4, "loss", train=named)
    assert shares.to_dataframe()["id"].tolist() == [f"pictures/{row}.png" for row in shares.rows]
    assert shares.to_dict()["samples"][0]["id"] == f"pictures/{shares.rows[0]}.png"
    found = datamodel.diagnose(digits.validation, named)
    suspects = found.suspects_to_dataframe()
    assert suspects["id"].tolist() == [f"pictures/{row}.png" for row in suspects["sample"]]
    assert len(suspects) == len(found.suspects)


def test_without_pyarrow_a_parquet_file_is_refused(answers, monkeypatch, refused, tmp_path):
    monkeypatch.setattr(saving, "find_spec", lambda name: None)
    with refused("pyarrow", ".csv"):
        answers["attribution"].save(tmp_path / "answer.parquet")
    assert not list(tmp_path.iterdir())
