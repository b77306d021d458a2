"""Real texts in three classes: docstrings of numpy, pandas and the standard library, with hashed words as token ids."""

import argparse
import collections
import email.message
import inspect
import logging
import zlib

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

VOCABULARY, LENGTH = 200, 16
SOURCES = (
    (np, np.ndarray),
    (pd.DataFrame, pd.Series),
    (argparse.ArgumentParser, collections.deque, email.message.Message, logging.Logger, str, dict, list, int, float),
)
SPECIAL = 2
"""Ids 0 and 1 are for padding and for the beginning."""


def first_words(thing):
    """Up to 15 words of a thing's docstring."""
    return (inspect.getdoc(thing) or "").lower().replace(".", " ").split()[: LENGTH - 1]


def texts(each):
    """``each`` docstrings of each class, and their labels."""
    for label, places in enumerate(SOURCES):
        things = [getattr(place, name) for place in places for name in dir(place) if not name.startswith("_")]
        found = list(dict.fromkeys(" ".join(words) for words in map(first_words, things) if len(words) > 4))
        assert len(found) >= each
        yield from ((text.split(), label) for text in found[:each])


class Docstrings(Dataset):
    """Samples as dicts, of different lengths, with a column that no model takes."""

    def __init__(self, each=40):
        self.rows = list(texts(each))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        words, label = self.rows[index]
        ids = [1, *(SPECIAL + zlib.crc32(word.encode()) % (VOCABULARY - SPECIAL) for word in words)]
        return {"input_ids": ids, "label": label, "row": index}


def collate(items):
    """A batch that is padded to its longest text."""
    length = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor([item["input_ids"] + [0] * (length - len(item["input_ids"])) for item in items])
    labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}
