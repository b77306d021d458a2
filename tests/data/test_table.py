"""Tables: what becomes of the columns of a CSV or Parquet file, and which files are refused."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import datasets as sklearn_datasets

import ddm
from ddm.data.features import Features
from ddm.data.tokens import Words
from ddm.data.views import SNIPPET, TableView

ROWS = 120


@pytest.fixture
def table():
    """A table with every kind of column."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 60, ROWS),
            "income": rng.normal(1000, 300, ROWS),
            "city": rng.choice(["Bern", "Genf", "Basel"], ROWS),
            "member": rng.random(ROWS) < 0.5,
            "when": pd.date_range("2024-01-01", periods=ROWS),
            "name": [f"person {i}" for i in range(ROWS)],
            "number": np.arange(ROWS),
            "empty": np.nan,
            "team": rng.choice(["red", "blue"], ROWS),
            "buys": rng.choice(["yes", "no"], ROWS),
        }
    )


@pytest.fixture
def written(tmp_path):
    """Writes a table and returns the name of the dataset."""

    def write(frame, kind="csv"):
        path = tmp_path / f"table.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        return f"{kind}:{path}"

    return write


def load(name, label="buys", **columns):
    return ddm.datasets.load(name, label=label, **columns)


# --- columns ---


def test_numbers_are_standardised_by_the_training_rows_and_words_become_columns_of_0_and_1(table, written, capsys):
    data = load(written(table[["age", "income", "city", "member", "buys"]]))
    x, y = data.train.batch()
    torch.testing.assert_close(x[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, :2].std(0, correction=0), torch.ones(2))
    assert data.test.batch()[0][:, :2].mean(0).abs().min() > 1e-4  # others' moments
    assert set(x[:, 2:].unique().tolist()) == {0.0, 1.0}
    assert bool((x[:, 3:].sum(1) == 1).all())  # one city
    assert (data.classes, data.task) == (("no", "yes"), "classification")
    rows = data.train.origin.numpy()
    assert [data.classes[label] for label in y] == table["buys"].iloc[rows].tolist()
    assert x[:, 2].tolist() == table["member"].iloc[rows].astype(float).tolist()
    assert capsys.readouterr().err == ""


def test_the_three_splits_share_no_row_and_keep_the_proportions_of_the_classes(table, written):
    data = load(written(table))
    rows = torch.cat([data.train.origin, data.validation.origin, data.test.origin])
    assert sorted(rows.tolist()) == list(range(ROWS))
    assert (len(data.test), len(data.validation)) == (24, 10)
    share = float((table["buys"] == "yes").mean())
    assert float(data.test.labels.double().mean()) == pytest.approx(share, abs=0.5 / 24)


def test_columns_that_teach_nothing_are_left_out_and_named(table, written, capsys):
    data = load(written(table))
    said = capsys.readouterr().err
    assert "name is left out: nearly every row has a value of its own" in said
    assert "number is left out: row numbers" in said
    assert "empty is left out: no values" in said
    assert not {"name", "number", "empty", "buys"} & set(data.train.view.frame.columns)


def test_neither_the_label_nor_groups_ids_or_dropped_columns_reach_the_network(table, written):
    table = table.assign(copy=table["buys"])[["age", "team", "name", "copy", "buys"]]
    data = load(written(table), group_by="team", id="name", drop=["copy"])
    assert data.train.shape == (1,)
    rows = data.train.origin.numpy()
    assert data.train.groups.tolist() == table["team"].iloc[rows].tolist()
    assert [data.train.id(i) for i in range(3)] == table["name"].iloc[rows[:3]].tolist()
    part = data.train[[5, 2]]
    assert part.groups.tolist() == table["team"].iloc[rows[[5, 2]]].tolist()
    assert part.view.text(0).startswith(f"team {part.groups[0]}, age {table['age'].iloc[rows[5]]}")


def test_missing_numbers_become_the_training_median_and_missing_words_a_value_of_their_own(table, written, capsys):
    table.loc[::3, "income"], table.loc[::4, "city"] = np.nan, None
    data = load(written(table[["income", "city", "buys"]]))
    assert "2 columns have missing values (income 33.3%, city 25.0%)" in capsys.readouterr().err
    train = table.iloc[data.train.origin.numpy()]
    raw, missing = data.train.raw, train["income"].isna().to_numpy()
    assert raw[missing, 0].unique().tolist() == [pytest.approx(train["income"].median())]
    assert raw.shape[1] == 1 + 4 + 1  # three cities, missing, and others
    assert "income missing" in data.train.view.text(int(np.flatnonzero(missing)[0]))


def test_rare_words_share_a_column_and_unknown_ones_of_other_splits_join_them():
    train = pd.DataFrame({"city": ["Bern"] * 9 + ["Genf"] * 9 + ["Uri"] * 2})
    features = Features.learn(train)
    found = features.encode(pd.DataFrame({"city": ["Genf", "Uri", "Paris", None]}))
    assert found.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_count_in_days(kind, table, written):
    data = load(written(table[["when", "buys"]], kind))
    raw = data.train.raw[:, 0]
    assert float(raw.max() - raw.min()) == pytest.approx(int(data.train.origin.max() - data.train.origin.min()))


def test_parquet_gives_the_same_samples_as_csv(table, written):
    table = table[["age", "income", "city", "member", "buys"]]
    one, other = load(written(table)), load(written(table, "parquet"))
    assert one.train.fingerprint() == other.train.fingerprint()


def test_a_folder_may_hold_a_test_split_of_its_own(table, tmp_path):
    table.iloc[:90].to_csv(tmp_path / "train.csv", index=False)
    table.iloc[90:].to_csv(tmp_path / "test.csv", index=False)
    data = load(f"csv:{tmp_path}", drop=["number"])
    assert sorted(data.test.origin.tolist()) == list(range(30))
    ages = [int(raw[0]) for raw in data.test.raw]
    assert ages == table["age"].iloc[90:].iloc[data.test.origin.numpy()].tolist()


def test_a_file_may_separate_its_columns_by_semicolons_and_begin_with_a_mark(table, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(table[["age", "buys"]].to_csv(index=False, sep=";").encode("utf-8-sig"))
    assert load(f"csv:{path}").train.view.frame.columns.tolist() == ["age"]


# --- tasks ---


def test_a_regression_keeps_its_numbers_and_brings_their_scale(written):
    frame = sklearn_datasets.load_diabetes(as_frame=True).frame
    data = load(written(frame), "target", task="regression", limit=100)
    assert (data.task, data.classes, data.train.has_classes) == ("regression", ("target",), False)
    labels = data.train.labels
    assert data.train.options == {
        "shift": pytest.approx(float(labels.mean())),
        "scale": pytest.approx(float(labels.std(correction=0))),
    }
    network = ddm.networks.build("mlp", data.train.shape, 1, **data.train.options)
    outputs = network(data.train.batch()[0])[:, 0]
    assert abs(float(outputs.mean() - labels.mean())) < 2 * float(labels.std())
    assert network.learning_rate == pytest.approx(ddm.networks.MLP.learning_rate / float(labels.var(correction=0)))


def test_whole_numbers_name_their_classes(table, written):
    data = load(written(table.assign(stars=[1, 3, 4] * 40)[["age", "stars"]]), "stars")
    assert data.classes == ("1", "3", "4")


def test_several_columns_of_0_and_1_make_a_multi_label_task(table, written):
    table = table.assign(a=[0, 1] * 60, b=[True, False, False] * 40)[["age", "a", "b"]]
    data = load(written(table), ["a", "b"])
    assert (data.task, data.classes) == ("multilabel", ("a", "b"))
    assert data.train.labels.tolist() == table[["a", "b"]].iloc[data.train.origin.numpy()].astype(float).values.tolist()


def test_what_the_columns_are_for_is_only_said_of_tables(refused):
    with refused("digits", "label"):
        ddm.datasets.load("digits", label="x")


# --- texts ---


@pytest.fixture
def texts():
    """Ninety texts that name their topic, and three rare words."""
    topics = ["the sea is blue and deep", "a hill is high and green", "red fire is hot"]
    return pd.DataFrame({"text": [topics[i % 3] for i in range(90)], "topic": ["sea", "hill", "fire"] * 30})


def test_texts_become_ids_of_the_words_of_the_training_texts(texts, written):
    data = load(written(texts), "topic", text="text")
    ids, mask = data.train.raw.tree["input_ids"], data.train.raw.tree["attention_mask"]
    assert data.train.options == {"vocabulary": 2 + len(set(" ".join(texts["text"]).split()))}
    assert ids.shape == mask.shape == (len(data.train), 6)
    assert mask.sum(1).tolist() == [len(data.train.view.texts[i].split()) for i in range(len(mask))]
    assert bool(((ids == 0) == (mask == 0)).all())
    assert data.train.view.text(0) == texts["text"].iloc[int(data.train.origin[0])]


def test_words_of_a_single_text_are_unknown_and_an_empty_text_has_one_token():
    words = Words(["Two words, twice", "two WORDS once"], 10)
    assert words.ids(["words two twice", "", "?!"], 10) == [[3, 2, 1], [1], [1]] or words.ids(["two"], 10) == [[2]]
    assert words.size == 4
    assert len(words.ids(["two " * 50], 10)[0]) == 10


@pytest.mark.slow
def test_a_tokenizer_of_a_local_folder_is_used(texts, written, tmp_path):
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "sea", "hill", "fire", "is"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        tmp_path / "tokenizer"
    )
    data = load(written(texts), "topic", text="text", tokenizer=str(tmp_path / "tokenizer"), length=4)
    ids = data.train.raw.tree["input_ids"]
    assert data.train.options == {"vocabulary": 7}
    assert ids.shape[1] == 4
    assert set(ids[:, 0].tolist()) == {vocabulary["[CLS]"]}


@pytest.mark.slow
def test_a_tokenizer_that_is_not_there_is_refused_without_a_network(texts, written, refused):
    with refused("tokenizer", "nobody/nothing", "local folder"):
        load(written(texts), "topic", text="text", tokenizer="nobody/nothing")


def test_a_long_text_is_shown_by_its_beginning():
    view = ddm.data.views.TextView(np.array(["word\n" * 500, "short"], dtype=object))
    assert len(view.text(0)) <= SNIPPET
    assert view.text(0).endswith("word…")
    assert view[np.array([1])].text(0) == "short"


def test_a_row_is_told_by_the_columns_in_which_it_differs_most():
    frame = pd.DataFrame({"a": [1.0, 2, 3, 2, 90], "b": ["x", "x", "x", "x", "y"], "c": [5.0, 5, 5, 5, 5]})
    view = TableView(frame)
    found = view.differing(4, view[np.arange(4)])
    assert {(name, value, usual) for name, value, usual in found} == {("a", "90", "2"), ("b", "y", "x")}
    assert view.differing(1, view[np.array([1])]) == []


# --- refusals ---

BAD = {
    "no label": ({}, {"label": ()}, ("--label",)),
    "another column": ({}, {"label": "bought"}, ("no column 'bought'", "age")),
    "missing labels": ({"buys": [None, "yes", "no"] * 40}, {}, ("missing in 40 of 120", "row 0")),
    "one class": ({"buys": "yes"}, {}, ("same in every row",)),
    "a lone class": ({"buys": ["rare", *["yes", "no"] * 59, "yes"]}, {}, ("'rare'", "one row")),
    "numbers as classes": ({}, {"label": "income"}, ("--task regression",)),
    "names as classes": ({}, {"label": "name"}, ("120 different values",)),
    "words as numbers": ({}, {"task": "regression"}, ("not a number",)),
    "no such task": ({}, {"task": "ranking"}, ("ranking", "regression")),
    "numbers as text": ({}, {"text": "age"}, ("holds numbers",)),
    "infinite numbers": ({"income": [1.0, 2.0, np.inf] * 40}, {"drop": "age"}, ("infinite", "'income'")),
    "several classes": ({}, {"label": ["buys", "team"], "task": "classification"}, ("one label",)),
    "several words": ({}, {"label": ["buys", "team"]}, ("0 or 1",)),
    "a text without words": ({"city": "?"}, {"text": "city"}, ("no word",)),
    "a length of nothing": ({}, {"text": "city", "length": 0}, ("length",)),
    "a label as group": ({}, {"group_by": "buys"}, ("--group-by",)),
    "another option": ({}, {"colour": "red"}, ("colour",)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_table_is_refused_in_a_sentence(case, table, written, refused):
    changes, columns, words = BAD[case]
    with np.errstate(all="ignore"), refused(*words):
        load(written(table.assign(**changes)), **{"label": "buys", **columns})


CONTENTS = {
    "nothing": (b"", "empty"),
    "no rows": (b"a,buys\n", "no rows"),
    "zeros": (b"a,buys\n1,\0yes\n", "bytes that are 0"),
    "another encoding": ("a,buys\n1,\xe4\n".encode("latin-1"), "UTF-8"),
    "too many values": (b"a,buys\n" + b"1,yes,3\n" * 20, "CSV file that can be read"),
    "too many columns": (b",".join(b"%d" % i for i in range(100_000)) + b"\n", "100,000 columns"),
    "a huge first line": (b"a" * 5_000_000, "first line"),
    "an open quotation": (b'a,buys\n"1,yes\n' + b"2,no\n" * 9, "CSV file that can be read"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_a_file_that_is_no_table_is_refused_in_a_sentence(case, tmp_path, refused):
    content, word = CONTENTS[case]
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with refused(word, "bad.csv"):
        load(f"csv:{path}")


def test_files_that_are_not_there_or_not_parquet_are_refused(tmp_path, refused):
    with refused("no file", "absent.csv"):
        load(f"csv:{tmp_path}/absent.csv")
    with refused("no file", "train.parquet"):
        load(f"parquet:{tmp_path}")
    (tmp_path / "bad.parquet").write_bytes(io.BytesIO(b"PAR1" + bytes(100)).getvalue())
    with refused("not a Parquet file"):
        load(f"parquet:{tmp_path}/bad.parquet")


def test_token_ids_beyond_the_vocabulary_of_a_network_are_refused_before_training(texts, written, refused):
    data = load(written(texts), "topic", text="text")
    recipe = ddm.Recipe(epochs=1, optimizer="adamw")
    with refused("token ids", "vocabulary=5"):
        ddm.train("text-transformer", data.train, recipe, options={"vocabulary": 5})
    small = ddm.networks.TextTransformer(data.train.shape, 3, vocabulary=5, width=8, heads=2, depth=1)
    with refused("token ids", "vocabulary=15"):
        ddm.train(small, data.train, recipe)
