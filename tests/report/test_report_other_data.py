"""The report of texts and tables, with and without classes: it shows what the data are, and hides what has no sense."""

import pytest
import torch
from other_data import EVIL, table, texts
from test_report import SECTIONS, written

import ddm
from ddm.report.predictions import choose_by_loss
from ddm.report.shown import Shown

WITHOUT_CLASSES = ["model", "trust", "groups", "effects", "residuals", "predictions", "synset", "cost"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def regression(folder):
    return written(*table(), folder)


@pytest.fixture(scope="module")
def topics(folder):
    return written(*texts(), folder)


def test_a_page_about_texts_shows_snippets_and_no_picture_of_a_sample(topics):
    assert topics.sections == SECTIONS
    for section in ("groups", "predictions"):
        assert "market" in topics.text[section] or "planet" in topics.text[section] or "goal" in topics.text[section]
    assert set(topics.pictures) <= {"synset"}
    assert "training samples: share it only" in topics.text["header"]


@pytest.mark.parametrize("made", [texts, table])
def test_what_stands_in_a_text_or_a_table_is_text_on_the_page(made, folder):
    page = written(*made(), folder)
    assert EVIL not in page.html
    assert "<script>alert" in " ".join(page.text.values())


def test_a_page_without_classes_hides_the_sections_about_classes(regression):
    assert regression.sections == WITHOUT_CLASSES
    assert "mislabelled" not in regression.html.partition("<script")[0]
    assert "agreement" not in regression.text["groups"].lower()
    assert "R²" in regression.text["header"]


def test_a_predicted_number_stands_beside_the_true_one(regression):
    datamodel, data = table()
    x, y = data.validation.batch()
    found = datamodel.target.outputs(x)[:, 0]
    worst = int((found - y).abs().argmax())
    card = f"The model says {float(found[worst]):.4g} ; it is {float(y[worst]):.4g} .".replace("-", "−")
    assert f"{data.validation.id(worst)} loss" in regression.text["residuals"]
    assert card in regression.text["residuals"]
    points = regression.charts["residuals-chart-data"]["data"][1]
    assert len(points["x"]) == len(y)
    assert points["y"][worst] == pytest.approx(float(found[worst]), rel=1e-4)


def test_the_effects_of_a_regression_are_those_of_attribute(regression):
    datamodel, data = table()
    name, effect = datamodel.attribute(data.validation, "loss").top(1)[0]
    assert f"{name} " in regression.text["effects"]
    assert f"{effect:+.4g}".replace("-", "−") in regression.text["effects"]
    assert "absolute error" in regression.text["effects"]


def test_a_row_shows_the_columns_in_which_it_differs_from_the_others():
    _, data = table()
    row = int(data.train.view.frame["size"].argmax())
    item = Shown(data.train, True).of(data.train, [row])[0]
    assert "size" in [name for name, _, _ in item["columns"]]
    assert item["id"] == data.train.id(row)
    assert Shown(data.train, False).of(data.train, [row]) == []


@pytest.mark.parametrize(("made", "task"), [(table, "multilabel"), (texts, "tokens")])
def test_other_tasks_without_classes_have_a_page(made, task, folder):
    page = written(*made(task), folder)
    assert page.sections == WITHOUT_CLASSES
    assert "The largest error" in page.text["predictions"]


def test_the_bank_of_texts_and_tables_is_described_and_shown_as_numbers(topics, regression):
    assert "drawn position by position from the training values: no row is a training sample" in topics.text["synset"]
    assert "drawn column by column from the training values" in regression.text["synset"]
    assert "input_ids" in topics.text["synset"]


def test_without_samples_no_text_is_left(folder):
    page = written(*texts(), folder, images=False)
    assert "holds no content of a training, validation or test sample" in page.text["header"]
    assert "market" not in page.html.partition("<script")[0]


def test_samples_without_a_view_are_shown_by_their_numbers():
    x = torch.tensor([[1.0, 2.5], [3.0, 4.0]])
    plain = ddm.Samples.from_batch(x, torch.tensor([1.0, 2.0]), ["price"], task="regression")
    assert Shown(plain, True).of(plain, [1])[0]["text"] == "3, 4"
    ids = ddm.Samples.from_batch({"input_ids": torch.arange(20).view(2, 10)}, torch.tensor([0, 1]))
    assert Shown(ids, True).of(ids, [1])[0]["text"] == "input_ids 10, 11, 12, 13, 14, 15, … (10 numbers)"


def test_the_shown_predictions_are_the_largest_a_usual_and_the_smallest_error():
    assert choose_by_loss(torch.tensor([1.0, 5.0, 3.0])) == [
        ("The largest error", 1),
        ("A usual error", 2),
        ("The smallest error", 0),
    ]
    assert choose_by_loss(torch.tensor([1.0])) == [("The largest error", 0)]
