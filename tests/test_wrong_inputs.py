"""Wrong inputs that a practitioner gives: each is refused with one sentence that says what to do."""

import warnings

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset

import ddm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 6)).astype("float32")
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
BROKEN = X.copy()
BROKEN[3, 2] = np.nan
IDS = RNG.integers(0, 20, (200, 7))
UNKNOWN = IDS.copy()
UNKNOWN[150, 2] = 40
RECIPE = ddm.Recipe(epochs=2, lr=0.1)
QUICK = {"curvature": 32, "checkpoints": 2, "synset": False}
TEXT = {"vocabulary": 20, "width": 8, "depth": 1}


class Own(Dataset):
    """A dataset of 200 samples that a function makes."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return self.sample(row)


class Endless(IterableDataset):
    """A dataset without positions."""

    def __iter__(self):
        return iter([(torch.zeros(6), 0)] * 10)


class Pair(nn.Module):
    """A network that returns a tuple."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x), x


def mlp(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


def frozen():
    return mlp().requires_grad_(False)


def texts(ids):
    return ddm.Samples.from_batch({"input_ids": torch.tensor(ids)}, Y)


def summed(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="sum")


def record_frozen():
    network = frozen()
    with ddm.record(network, torch.optim.SGD(network.parameters(), 0.1)):
        pass


def fit_summed():
    target = ddm.train(mlp(), TABLE, ddm.Recipe(epochs=2, lr=0.001), loss=summed)
    ddm.DistilledDatamodel.fit(target, TABLE, partition="class", **QUICK)


TABLE = ddm.Samples.from_arrays(X, Y)
NUMBERS = ddm.Samples.from_arrays(X, X[:, 0], task="regression")

TRAINING = {
    "an id out of the vocabulary": (
        lambda: ddm.train("text-transformer", texts(UNKNOWN), RECIPE, options=TEXT),
        ["token ids from", "vocabulary="],
    ),
    "a NaN column": (lambda: ddm.Samples.from_arrays(BROKEN, Y), ["NaN", "clean or drop"]),
    "a NaN in a dataset": (lambda: ddm.train(mlp(), Own(lambda i: (torch.tensor(BROKEN[i]), Y[i])), RECIPE), ["NaN"]),
    "words as inputs": (lambda: ddm.Samples.from_arrays(np.full((200, 2), "a"), Y), ["not numbers", "encode"]),
    "labels of another length": (lambda: ddm.Samples.from_arrays(X, Y[:100]), ["200 inputs", "(100,)"]),
    "a loss of one's own that sums": (fit_summed, ["not the mean", "one value for each sample"]),
    "a network that returns a tuple": (lambda: ddm.train(Pair(), TABLE, RECIPE), ["tuple", "Task of your own"]),
    "a frozen network": (lambda: ddm.train(frozen(), TABLE, RECIPE), ["requires_grad_(True)"]),
    "a frozen network in a loop of one's own": (record_frozen, ["frozen", "requires_grad_(True)"]),
    "an iterable dataset": (lambda: ddm.train(mlp(), Endless(), RECIPE), ["no positions", "list(dataset)"]),
    "a generator": (lambda: ddm.train(mlp(), (row for row in range(3)), RECIPE), ["no positions"]),
    "arrays in place of a dataset": (lambda: ddm.train(mlp(), (X, Y), RECIPE), ["from_arrays"]),
    "inputs of different lengths": (
        lambda: ddm.train(mlp(), Own(lambda i: (torch.zeros(3 + i % 4), Y[i])), RECIPE),
        ["collate_fn", "pads"],
    ),
    "lists of different lengths": (
        lambda: ddm.Samples.from_dataset(Own(lambda i: {"input_ids": [1] * (3 + i % 4), "labels": int(Y[i])})),
        ["collate_fn", "pads"],
    ),
    "float labels for classification": (
        lambda: ddm.train(mlp(), Own(lambda i: (torch.tensor(X[i]), float(X[i, 0]))), RECIPE),
        ["not whole numbers", "'regression'"],
    ),
    "labels beyond the outputs": (lambda: ddm.train(mlp(2), TABLE, RECIPE), ["3 classes", "classes=3"]),
    "a dict without labels": (
        lambda: ddm.Samples.from_dataset(Own(lambda i: {"x": torch.tensor(X[i])})),
        ["no labels", "dicts with labels"],
    ),
    "regression labels of the wrong width": (
        lambda: ddm.train(mlp(1), ddm.Samples.from_arrays(X, X[:, :2], task="regression"), RECIPE, task="regression"),
        ["one number for each sample", "(200, 2)"],
    ),
    "several labels that are not 0 or 1": (
        lambda: ddm.Samples.from_arrays(X, RNG.integers(0, 3, (200, 4)), task="multilabel"),
        ["must be 0 or 1"],
    ),
    "several labels in one column": (
        lambda: ddm.Samples.from_arrays(X, Y, task="multilabel"),
        ["table of 0 and 1", "(200,)"],
    ),
    "a single class": (lambda: ddm.train(mlp(), ddm.Samples.from_arrays(X, 0 * Y), RECIPE), ["at least two classes"]),
}

QUESTIONS = {
    "an objective of another task": (lambda dm: dm["numbers"].attribute(NUMBERS, "accuracy"), ["regression", "r2"]),
    "an objective that there is not": (lambda dm: dm["table"].attribute(TABLE, "acuracy"), ["'acuracy'", "accuracy"]),
    "a diagnosis of regression": (lambda dm: dm["numbers"].diagnose(NUMBERS), ["regression", "attribute"]),
    "the accuracy of regression": (lambda dm: dm["numbers"].target.accuracy(NUMBERS), ["no accuracy", "loss"]),
    "a question without the labels it needs": (
        lambda dm: dm["table"].attribute((X[:4], None), "loss"),
        ["labels", "give them"],
    ),
    "a text without the label it needs": (
        lambda dm: dm["texts"].attribute({"input_ids": torch.tensor(IDS[:3])}, "loss"),
        ["labels", "give them"],
    ),
    "a diagnosis without labels": (lambda dm: dm["table"].diagnose((X[:4], None)), ["samples with labels"]),
    "a text with an id out of the vocabulary": (
        lambda dm: dm["texts"].trace({"input_ids": torch.tensor(UNKNOWN[149:152]), "labels": torch.tensor(Y[149:152])}),
        ["id that the network does not know"],
    ),
    "a text under another name": (
        lambda dm: dm["texts"].trace({"ids": torch.tensor(IDS[:3]), "labels": torch.tensor(Y[:3])}),
        ["does not accept", "'ids'"],
    ),
    "a row with too few columns": (lambda dm: dm["table"].trace((X[:5, :3], Y[:5])), ["does not accept"]),
    "a row with a NaN": (lambda dm: dm["table"].trace((BROKEN[:5], Y[:5])), ["NaN"]),
    "labels of another length": (lambda dm: dm["table"].trace((X[:5], Y[:3])), ["5 inputs", "(3,)"]),
    "a label that there is not": (lambda dm: dm["table"].trace((X[:5], 9 + 0 * Y[:5])), ["0 to 2", "9"]),
    "classes where there are none": (
        lambda dm: dm["numbers"].attribute(NUMBERS[:3], "value", level="class"),
        ["no class level"],
    ),
    "groups of another length": (lambda dm: fit(dm["table"].target, TABLE, ["a"] * 100 + ["b"] * 99), ["(199,)"]),
    "rows that there are not": (lambda dm: fit(dm["table"].target, TABLE, {"a": [1, 500]}), ["'a'", "0 to 199"]),
    "groups of nearly one sample each": (lambda dm: fit(dm["table"].target, TABLE, X[:, 0]), ["by_quantile"]),
    "other samples than those of the training": (
        lambda dm: fit(dm["table"].target, ddm.Samples.from_arrays(X[::-1].copy(), Y), "class"),
        ["other samples"],
    ),
    "arrays in an audit": (lambda dm: dm["table"].audit((X, Y)), ["from_arrays"]),
}


def fit(target, samples, partition):
    return ddm.DistilledDatamodel.fit(target, samples, partition=partition, **QUICK)


@pytest.fixture(scope="module")
def fitted():
    """A datamodel of a table, of numbers to predict, and of texts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = ddm.train(mlp(1), NUMBERS, ddm.Recipe(epochs=3, lr=0.05), task="regression")
        return {
            "table": fit(ddm.train(mlp(), TABLE, RECIPE), TABLE, "class"),
            "numbers": fit(numbers, NUMBERS, np.arange(200) % 4),
            "texts": fit(ddm.train("text-transformer", texts(IDS), RECIPE, options=TEXT), texts(IDS), "class"),
        }


@pytest.mark.parametrize("name", TRAINING)
def test_wrong_training_data_and_networks_are_refused(name):
    give, words = TRAINING[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with refused(*words):
            give()


@pytest.mark.parametrize("name", QUESTIONS)
def test_wrong_questions_and_groups_are_refused(name, fitted):
    ask, words = QUESTIONS[name]
    with refused(*words):
        ask(fitted)
    assert torch.is_grad_enabled()  # what is kept of a refused question must not end the user's training
