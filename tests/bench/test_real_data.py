"""Tables and texts as benchmark problems: their splits, encodings and stored truths."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused

import ddm
from ddm.baselines import BASELINES
from ddm.bench import real_data
from ddm.bench.methods import run_method
from ddm.bench.problem import Problem
from ddm.bench.problems import TABLES_AND_TEXTS
from ddm.bench.setup import Setup
from ddm.bench.truth_files import measure_truth
from ddm.bench.truths import StoredTruth

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("method.md", "privacy.md")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file like debian.csv: paragraphs of two pages of the documentation, whose class is their page."""
    folder = tmp_path_factory.mktemp("texts")
    pages = [(name, (DOCS / name).read_text().split("\n\n")) for name in SECTIONS]
    rows = [(name, part) for name, parts in pages for part in parts if len(part) > 80]
    order = np.random.default_rng(0).permutation(len(rows))
    with (folder / "debian.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["package", "section", "text", "maintainer"])
        writer.writerows([str(number), *rows[number], "us"] for number in order)
    return folder


def tiny_setup(data, root=None):
    model = "text-transformer" if data == "debian" else "mlp"
    options = {"vocabulary": real_data.WORDS, "width": 8, "depth": 1} if data == "debian" else {"width": 8}
    recipe = ddm.Recipe(epochs=3, lr=0.01, batch_size=16)
    return Setup(
        data=data, root=root, model=model, options=options, recipe=recipe, clusters=2, tests=10, validation=10, unions=2
    )


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_columns_are_scaled_by_the_training_split_and_splits_share_no_row(name):
    data = real_data.load(name)
    x = data.train.batch()[0]
    torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(x.shape[1]), atol=1e-4, rtol=0)
    origins = torch.cat([data.train.origin, data.validation.origin, data.test.origin])
    assert origins.tolist() == list(range(data.published))


def test_texts_become_ids_of_the_commonest_training_words_with_a_mask(texts):
    data = real_data.load("debian", str(texts))
    x = data.train.batch()[0].tree
    assert x["input_ids"].shape == x["attention_mask"].shape == (len(data.train), real_data.TOKENS)
    assert data.classes == SECTIONS
    assert not x["input_ids"][x["attention_mask"] == 0].any()
    assert (x["input_ids"][x["attention_mask"] == 1] > 0).all()
    counts = x["input_ids"].flatten().bincount()
    assert counts[2] == counts[2:].max()  # the commonest word comes first


def test_a_missing_file_is_refused_with_the_command_that_makes_it(tmp_path):
    with refused("bench/data/flights.py", "--root"):
        real_data.load("flights", str(tmp_path))


def test_a_stored_truth_of_a_regression_gives_the_effects_of_retraining(tmp_path):
    problem = Problem(tiny_setup("diabetes"), tmp_path, engine="serial")
    measure_truth(problem).save(tmp_path / "truth.safetensors")
    stored = Problem(problem.setup, tmp_path / "other", stored=StoredTruth.load(tmp_path / "truth.safetensors"))
    assert stored.partition.parents is None
    for mine, retrained in zip(stored.truth, problem.truth, strict=True):
        np.testing.assert_allclose(mine.margin, retrained.margin, atol=1e-2 * np.abs(retrained.margin).mean())
        np.testing.assert_allclose(mine.validation, retrained.validation, atol=1e-3)
    assert 0 <= stored.stored.facts.accuracy == problem.test_score < 1


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(BASELINES) - {"random", "size"}))
def test_baselines_score_groups_of_texts(method, texts, tmp_path):
    outcome = run_method(Problem(tiny_setup("debian", str(texts)), tmp_path), method)
    assert not outcome.reason
    assert np.isfinite(outcome.effects.margin).all()
    assert outcome.effects.margin.std() > 0


@pytest.mark.slow
def test_a_bert_of_transformers_is_a_network_of_problems():
    pytest.importorskip("transformers")
    from ddm.bench import bert

    one, two = (bert.build((16,), 3, vocabulary=50, width=8, depth=1, seed=seed) for seed in (0, 0))
    ids = torch.randint(0, 50, (2, 16))
    assert one(input_ids=ids).logits.shape == (2, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_every_problem_on_tables_and_texts_has_its_own_training():
    setups = [setup for _, setup in TABLES_AND_TEXTS.values()]
    assert len({setup.training_key() for setup in setups}) == len(setups)
    assert all(real_data.is_known(setup.data) for setup in setups)
