"""Small runs of tables and texts, with and without classes, whose pages the tests look at."""

from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import nn

import ddm
from ddm.data.views import TableView, TextView

EVIL = "<script>alert(1)</script>"
"""Stands in texts and tables: it must never become part of a page."""

_FIT = {"curvature": 128, "bank": 8}
_WORDS = {0: "match goal team", 1: "stock market bank", 2: "star planet moon"}


def _data(samples, task="classification", encode=None):
    parts = (samples[:120], samples[120:160], samples[160:])
    return ddm.Data("made", *parts, len(samples), task, encode)


def _fitted(network, data, loss=None, **options):
    target = ddm.train(network, data.train, ddm.Recipe(epochs=4, lr=0.02, batch_size=16, optimizer="adam"), loss=loss)
    return ddm.DistilledDatamodel.fit(target, data.train, **({"clusters": 4} | _FIT | options)), data


def _frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 9, 200), "size": rng.normal(80, 20, 200).round(1)})
    frame["street"] = [EVIL if row % 7 == 0 else "Main Street" for row in range(200)]
    return frame


@cache
def table(task="regression"):
    """Prices of flats: a number, or two labels."""
    frame = _frame()
    x = torch.tensor(frame[["rooms", "size"]].to_numpy(np.float32))
    x = (x - x.mean(0)) / x.std(0)
    price = 3 * x[:, 0] + 2 * x[:, 1]
    labels, names = (price, ["price"]) if task == "regression" else ((x > 0).float(), ["many rooms", "large"])
    ids = [f"flat {row}" for row in range(200)]
    samples = ddm.Samples.from_batch(x, labels, names, task=task, ids=ids, view=TableView(frame))

    def encode(values):
        typed = pd.DataFrame(
            {name: [float(values.get(name, 0))] for name in ("rooms", "size")} | {"street": [values.get("street", "")]}
        )
        raw = (torch.tensor(typed[["rooms", "size"]].to_numpy(np.float32)) - 40) / 40
        return ddm.Samples.from_batch(raw, labels[:1], names, task=task, view=TableView(typed))

    return _fitted(
        ddm.networks.build("mlp", (2,), len(names), width=8, depth=1), _data(samples, task, encode), ddm.Task(task)
    )


@cache
def texts(task="classification"):
    """News of three topics: their topic, or for each word whether it is of the topic."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    words = [[*rng.permutation(_WORDS[label].split()), rng.choice(["the", "today"])] for label in labels]
    numbers = {word: number for number, word in enumerate(sorted({word for text in words for word in text}), 1)}
    written = np.array([f"{EVIL} {' '.join(text)}" for text in words], dtype=object)

    def ids(texts):
        rows = [[numbers.get(word, 0) for word in text.split() if word != EVIL][:4] for text in texts]
        return {"input_ids": torch.tensor([(row + [0] * 4)[:4] for row in rows])}

    if task == "tokens":
        labels = np.array([[int(word in _WORDS[2]) for word in text] for text in words])
    names = ["sport", "money", "sky"] if task == "classification" else ["other", "sky"]
    samples = ddm.Samples.from_batch(ids(written), labels, names, task=task, view=TextView(written))

    def encode(text):
        view = TextView(np.array([text], dtype=object))
        return ddm.Samples.from_batch(ids([text]), labels[:1], names, task=task, view=view)

    network = _Tagger(len(numbers) + 1) if task == "tokens" else _Bag(len(numbers) + 1)
    given = ddm.Task("tokens") if task == "tokens" else None
    return _fitted(network, _data(samples, task, encode), given, partition="class" if task != "tokens" else "kmeans")


class _Bag(nn.Module):
    """Classifies a text by the mean of its words."""

    def __init__(self, words):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(words, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        return self.head(self.words(input_ids).mean(1))


class _Tagger(nn.Module):
    """Classifies each word."""

    def __init__(self, words):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(words, 8), nn.Linear(8, 2)

    def forward(self, input_ids):
        return self.head(self.words(input_ids))
