"""Any map-style dataset becomes samples, in memory or read when needed."""

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import ddm
from ddm.data.inputs import Inputs, equal
from ddm.data.reading import Reading

COUNT = 40


class Texts(Dataset):
    """Token ids of different lengths, as dicts of lists; counts how many samples were read."""

    def __init__(self, labels=True):
        rng = np.random.default_rng(0)
        self.ids = [rng.integers(5, 50, rng.integers(3, 9)).tolist() for _ in range(COUNT)]
        self.labels, self.reads = labels, 0

    def __len__(self):
        return COUNT

    def __getitem__(self, row):
        self.reads += 1
        item = {"input_ids": self.ids[row], "text": f"document {row}"}
        return item | {"labels": row % 3} if self.labels else item


def pad(items):
    """The user's collate_fn: pads to the longest of the batch."""
    length = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor([item["input_ids"] + [0] * (length - len(item["input_ids"])) for item in items])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    return batch | ({"labels": torch.tensor([item["labels"] for item in items])} if "labels" in items[0] else {})


def test_a_dataset_in_memory_is_padded_alike_in_every_batch():
    samples = ddm.Samples.from_dataset(Texts(), collate=pad)
    x, y = samples.batch([0, 5])
    assert isinstance(x, Inputs)
    assert x.tree["input_ids"].shape == (2, 8)
    assert x.tree["input_ids"].dtype == torch.int64
    assert y.tolist() == [0, 2]
    assert samples.has_classes
    ids, label = samples[7]
    assert ids["input_ids"][: len(Texts().ids[7])].tolist() == Texts().ids[7]
    assert label == 1


def test_a_loader_brings_its_collate_function():
    loader = DataLoader(Texts(), batch_size=4, collate_fn=pad, shuffle=True)
    assert (
        ddm.Samples.from_dataset(loader).fingerprint() == ddm.Samples.from_dataset(Texts(), collate=pad).fingerprint()
    )


def test_a_dataset_beyond_the_memory_is_read_when_needed():
    dataset = Texts()
    samples = ddm.Samples.from_dataset(dataset, collate=pad, memory=0)
    assert isinstance(samples.raw, Reading)
    assert samples.nbytes == samples.labels.nbytes
    before = dataset.reads
    some = samples[[3, 8, 9]]
    assert dataset.reads == before
    x, y = some.batch([2, 0])
    assert dataset.reads == before + 2
    assert y.tolist() == [9 % 3, 0]
    whole = ddm.Samples.from_dataset(Texts(), collate=pad).batch([9, 3])[0]
    length = x.tree["input_ids"].shape[1]
    assert equal(x, Inputs({name: leaf[:, :length] for name, leaf in whole.tree.items()}))


def test_the_fingerprint_of_a_read_dataset_depends_on_its_values_and_rows():
    first, again = (ddm.Samples.from_dataset(Texts(), collate=pad, memory=0) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    assert first[:5].fingerprint() == again[:5].fingerprint() != first[1:6].fingerprint()
    other = Texts()
    other.ids[17][0] += 1
    assert ddm.Samples.from_dataset(other, collate=pad, memory=0).fingerprint() != first.fingerprint()


def test_numbers_in_lists_need_no_collate_function():
    rows = [{"a": [1.0, 2.0], "b": 3, "note": "x", "labels": i % 2} for i in range(4)]
    samples = ddm.Samples.from_dataset(rows)
    assert set(samples.batch()[0].tree) == {"a", "b"}
    assert samples.batch()[0].tree["a"].dtype == torch.float32


def test_an_index_beside_the_label_is_ignored():
    rows = [(torch.rand(3) + i, i % 2, i) for i in range(6)]
    samples = ddm.Samples.from_dataset(rows)
    assert torch.equal(samples.batch()[0], torch.stack([x for x, _, _ in rows]))


def test_labels_of_a_regression_stay_numbers():
    samples = ddm.Samples.from_dataset(TensorDataset(torch.rand(6, 3), torch.rand(6)), task="regression")
    assert samples.labels.is_floating_point()
    assert not samples.has_classes
    assert samples.classes == ("prediction",)


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Endless(), "no positions"),
        (Texts(labels=False), "collate"),
        ([], "empty"),
        ([(object(), 1)], "reading it failed"),
    ],
    ids=["iterable", "ragged", "empty", "objects"],
)
def test_datasets_that_cannot_be_samples_are_refused(dataset, words):
    with refused(words):
        ddm.Samples.from_dataset(dataset)


def test_samples_without_labels_are_refused():
    with refused("no labels"):
        ddm.Samples.from_dataset(Texts(labels=False), collate=pad)
    with refused("no labels"):
        ddm.Samples.from_dataset(Texts(labels=False), collate=pad, memory=0)


def test_values_that_are_not_finite_are_found_while_reading():
    rows = TensorDataset(torch.tensor([[1.0, 2.0], [float("nan"), 3.0]]), torch.tensor([0, 1]))
    with refused("NaN"):
        ddm.Samples.from_dataset(rows, memory=0)
