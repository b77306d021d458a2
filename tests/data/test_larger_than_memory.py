"""Datasets that do not fit the memory: they are read when needed, and answer as if they were in memory."""

import pickle

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ddm
from ddm.data import reading
from ddm.data.reading import Source
from ddm.distil.response.bank import draw_bank
from ddm.distil.response.pull import GroupSamples, _Tasks

COUNT, SHAPE = 640, (1, 8, 8)


class Stored(Dataset):
    """Images in a file, which count how many are read at once."""

    def __init__(self, path):
        self.images, self.most = np.memmap(path, np.float32, "r", shape=(COUNT, *SHAPE)), 0

    def __len__(self):
        return COUNT

    def __getitem__(self, row):
        return torch.from_numpy(self.images[row].copy()), row % 4

    def __getitems__(self, rows):
        self.most = max(self.most, len(rows))
        return [self[row] for row in rows]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "images"
    generator = np.random.default_rng(0)
    patterns = generator.normal(size=(4, *SHAPE))
    images = patterns[np.arange(COUNT) % 4] + generator.normal(size=(COUNT, *SHAPE))
    images.astype(np.float32).tofile(path)
    return path


@pytest.fixture
def stored(path):
    return Stored(path)


@pytest.fixture
def read(stored):
    """The samples, read when needed."""
    return ddm.Samples.from_dataset(stored, memory=1e-6)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 4))


def test_samples_that_are_read_when_needed_are_the_same_as_those_in_memory(stored, read):
    memory = ddm.Samples.from_dataset(stored)
    assert (read.nbytes, len(read), read.shape) == (memory.labels.nbytes, COUNT, SHAPE)
    rows = [5, 3, 200]
    for one, other in ((read, memory), (read[50:220][rows[:2]], memory[50:220][rows[:2]])):
        assert torch.equal(one.batch()[0], other.batch()[0])
        assert torch.equal(one.labels, other.labels)
    parts = torch.arange(COUNT).split(100)
    for (x, y), part in zip(read.batches(parts), parts, strict=True):
        assert torch.equal(x, memory.batch(part)[0])
        assert torch.equal(y, memory.labels[part])
    assert read.bytes_each == memory.bytes_each == 4 * 64
    assert torch.equal(read[rows].in_memory().batch()[0], memory.batch(rows)[0])


def test_a_fit_answers_as_if_the_dataset_were_in_memory_and_never_reads_all_of_it(stored, read, monkeypatch):
    memory = ddm.Samples.from_dataset(stored)
    recipe = ddm.Recipe(epochs=3, lr=0.1, batch_size=32)
    monkeypatch.setattr("ddm.data.inputs._AT_ONCE", 50 * 4 * 64)
    settings, found = ddm.Settings(curvature=64, checkpoints=2, samples=20, bank=16), []
    for samples in (memory, read):
        stored.most = 0
        target = ddm.train(network(), samples, recipe)
        dm = ddm.DistilledDatamodel.fit(target, samples, 2, settings=settings)
        found.append(dm.attribute(memory[:30], "loss").matrix)
        assert dm.diagnose(memory[:50]).accuracy > 0.5
        assert len(dm.shares(memory[:1]).rows) > 10
    assert 0 < stored.most <= 300  # as many as the checks compare; batches have at most 50
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_workers_of_the_users_loader_read_ahead_in_order_and_leave_random_numbers_alone(stored):
    samples = ddm.Samples.from_dataset(DataLoader(stored, num_workers=1), memory=1e-6)
    assert samples.raw.source.workers == 1
    parts = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).split(90)
    before = torch.random.get_rng_state()
    streamed = [x for x, _ in samples.batches(parts)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(x, samples.batch(part)[0]) for x, part in zip(streamed, parts, strict=True))


def test_a_mapped_file_is_sent_to_workers_by_its_name(stored, read):
    sent = pickle.dumps(read)
    assert len(sent) < 20_000 < stored.images.nbytes
    again = pickle.loads(sent)
    assert torch.equal(again.batch()[0], read.batch()[0])


def test_a_task_carries_its_own_samples_only(stored, read):
    task = _Tasks(read, [GroupSamples(np.arange(10), 0.1), GroupSamples(np.arange(50, 60), 0.1)], 1)[1]
    ((samples, _),) = task.groups
    assert torch.equal(samples.raw, read.batch(range(50, 60))[0])


def test_the_bank_of_pictures_that_are_read_when_needed_is_noise(read):
    bank = draw_bank(read, 200, 0)
    assert bank.shape == (200, *SHAPE)
    assert abs(float(bank.std()) - 1) < 0.05
    assert float(torch.isin(bank, read.batch()[0]).double().mean()) < 0.01  # none is drawn from the images


def test_a_question_that_does_not_fit_the_memory_is_refused(read, monkeypatch):
    target = ddm.train(network(), read, ddm.Recipe(epochs=1, lr=0.1))
    dm = ddm.DistilledDatamodel.fit(target, read, 1, curvature=32, checkpoints=2, synset=False)
    monkeypatch.setattr("ddm.answers.question.MEMORY", read.bytes_each * 100 / 2**30)
    with refused("640 samples", "subsample(100)"):
        dm.attribute(read, "loss")
    assert dm.attribute(read.subsample(100), "loss").matrix.shape == (4, 1)


def test_words_as_labels_and_missing_labels():
    class Words(Stored):
        def __init__(self, labelled):
            self.labelled = labelled

        def __getitem__(self, row):
            return {"x": torch.full((3,), float(row)), **({"label": "ab"[row % 2]} if self.labelled else {})}

        __getitems__ = None

    Words.__getitems__ = lambda self, rows: [self[row] for row in rows]
    samples = ddm.Samples.from_dataset(Words(True), memory=1e-6)
    assert isinstance(samples.raw, reading.Reading)
    assert samples.classes == ("a", "b")
    with refused("no labels"):
        ddm.Samples.from_dataset(Words(False), memory=1e-6)


def test_a_source_estimates_the_size_of_a_sample(stored):
    assert Source(stored).bytes_each == 4 * 64
