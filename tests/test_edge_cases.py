"""Data at the edge of what can be used: each is handled with finite numbers or refused in a sentence."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import assert_refused

import ddm
from ddm import DistilledDatamodel, Recipe
from ddm.data.samples import Samples

LABELS = np.arange(40) % 4
RECIPE = Recipe(epochs=2, batch_size=16)


def images(count=40, channels=1, size=6):
    return np.random.default_rng(0).random((count, channels, size, size)).astype(np.float32)


def fitted(samples, network=None, recipe=RECIPE, **options):
    """A datamodel of samples, and what it was warned of."""
    network = network or ddm.networks.ConvNet(samples.shape, len(samples.classes), width=4, depth=1)
    target = ddm.train(network, samples, recipe)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        datamodel = DistilledDatamodel.fit(target, samples, **({"clusters": 2, "curvature": 32, "bank": 4} | options))
    return datamodel, [str(one.message) for one in said]


def is_finite(datamodel, question):
    """True if every value that a datamodel stores and returns is finite."""
    synset = datamodel.synset
    held = [synset.images, synset.targets, synset.step_sizes, synset.alignment]
    asked = [datamodel.attribute(question, objective).matrix for objective in ("loss", "prediction")]
    return all(bool(torch.as_tensor(values).isfinite().all()) for values in (*held, *asked))


class Linear(torch.nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.last = torch.nn.Linear(inputs, classes)

    def forward(self, x):
        return self.last(x.flatten(1))


class Dead(torch.nn.Module):
    """Its outputs are 0 and stay 0, whatever the input."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(36, 5, bias=False), torch.nn.Linear(5, 4, bias=False)
        torch.nn.init.constant_(self.first.weight, -1)
        torch.nn.init.zeros_(self.last.weight)

    def forward(self, x):
        return self.last(self.first(x.flatten(1).abs()).relu())


def constant_class():
    x = images()
    x[LABELS == 1] = 0.5
    return x


def constant_pixels():
    x = images()
    x[:, :, :, 0] = 0
    return x


@pytest.mark.parametrize("matching", [{}, {"matching": "reverse", "steps": 2}], ids=["response", "reverse"])
@pytest.mark.parametrize(
    ("x", "options"),
    [
        (constant_class(), {}),
        (constant_pixels(), {}),
        (np.linspace(0, 1, 40, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 6, 6)), {}),
        (np.repeat(images(4), 10, 0), {}),
        (np.repeat(images(1), 40, 0), {}),
        (images(size=1), {}),
        (images(channels=4), {}),
        (images(), {"clusters": 10}),
        (images(), {"partition": np.arange(40)}),
        (images(), {"partition": np.zeros(40, int)}),
    ],
    ids=[
        "a class of constant images",
        "constant pixels",
        "constant images",
        "each image ten times",
        "one image forty times",
        "1×1 images",
        "4 channels",
        "clusters of one sample",
        "groups of one sample",
        "the whole dataset as one group",
    ],
)
def test_numbers_stay_finite(x, options, matching):
    samples = Samples.from_arrays(x, LABELS)
    datamodel, _ = fitted(samples, **options, **matching)
    assert is_finite(datamodel, samples[:3])
    assert datamodel.partition.sizes.min() >= 1


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int64])
def test_numbers_of_other_types_are_read_as_float32(dtype):
    x = (9 * images()).astype(dtype)
    found, expected = (Samples.from_arrays(values, LABELS).batch()[0] for values in (x, x.astype(np.float32)))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_labels_as_strings_are_the_classes():
    words = np.array(["pear", "apple", "fig", "date"])
    samples = Samples.from_arrays(images(), words[LABELS])
    assert samples.classes == ("apple", "date", "fig", "pear")
    assert [samples.classes[label] for label in samples.labels[:4]] == words.tolist()
    datamodel, _ = fitted(samples, partition="class")
    assert set(datamodel.partition.names) == set(words)


def test_labels_that_leave_gaps_are_kept_and_empty_classes_have_no_group():
    samples = Samples.from_arrays(images(), 3 * LABELS)
    datamodel, _ = fitted(samples, partition="class")
    assert len(samples.classes) == 10
    assert datamodel.partition.names == ("0", "3", "6", "9")
    assert is_finite(datamodel, samples[:3])


def with_value(value):
    x = images()
    x[3, 0, 1, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "labels", "words"),
    [
        (with_value(np.nan), LABELS, ["NaN"]),
        (with_value(np.inf), LABELS, ["infinite"]),
        (images().astype(np.complex64), LABELS, ["complex"]),
        (images(), LABELS - 1, ["-1 to 2"]),
        (images(), LABELS + 0.5, ["whole numbers"]),
        (images(), LABELS * np.nan, ["whole numbers"]),
        (np.ones_like(images()), LABELS, ["constant"]),
        (images()[:0], LABELS[:0], ["at least one"]),
    ],
    ids=["NaN", "infinite", "complex", "negative", "halves", "NaN labels", "constant", "empty"],
)
def test_unusable_samples_are_refused(x, labels, words, refused):
    with refused(*words):
        Samples.from_arrays(x, labels)


def test_data_of_one_class_are_refused_before_training_and_by_a_recorded_target(refused):
    samples = Samples.from_arrays(images(), 0 * LABELS)
    with refused("class '0'"):
        ddm.train(Linear(36, 1), samples, RECIPE)
    network = Linear(36, 1)
    recorder = ddm.Recorder(network)
    recorder.snapshot()
    with refused("class '0'"):
        DistilledDatamodel.fit(recorder.target(), samples)


def test_data_of_one_class_are_refused_by_the_command_line(command):
    np.savez("one.npz", images=images(), labels=0 * LABELS)
    assert_refused(command("fit", "npz:one.npz", "--epochs", 1), "class")
    assert not Path("runs/npz-one.npz/synset.safetensors").exists()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_training_that_diverges_is_refused(optimizer, refused):
    with refused("diverged", "lower the lr"):
        fitted(
            Samples.from_arrays(images(), LABELS), recipe=Recipe(epochs=4, batch_size=16, lr=1e38, optimizer=optimizer)
        )


def test_a_snapshot_that_is_not_finite_is_refused(refused):
    network = Linear(36, 4)
    recorder = ddm.Recorder(network)
    network.last.weight.data[0, 0] = torch.nan
    with refused("not finite", "lower the lr"):
        recorder.snapshot()


def test_a_network_whose_predictions_never_change_is_refused_or_warned_about(refused):
    samples = Samples.from_arrays(images(), LABELS)
    with refused("the parameters are the same", "another lr"):
        fitted(samples, Dead())
    decay = replace(RECIPE, weight_decay=0.1)  # changes the parameters, but not the predictions
    with refused("do not change with its parameters"):
        fitted(samples, Dead(), decay)
    _, said = fitted(samples, Dead(), decay, matching="reverse", steps=2)
    assert any("carry no signal" in sentence for sentence in said)


def test_ten_thousand_classes_are_distilled_or_refused_before_memory_is_asked_for(refused):
    labels = np.append(np.arange(39), 9999)
    samples = Samples.from_arrays(images(), labels)
    with refused("10,000 classes", "GiB", "reverse matching"):
        fitted(samples, Linear(36, 10_000), bank=None)
    datamodel, _ = fitted(samples, Linear(36, 10_000), matching="reverse", steps=1, partition=LABELS)
    assert is_finite(datamodel, samples[:2])


# --- questions ---


def test_an_empty_set_of_samples_is_refused_by_every_question(datamodel, digits, refused):
    nothing = digits.test[[]]
    assert len(nothing) == len(digits.test[:0]) == 0
    for ask in (datamodel.attribute, datamodel.trace, datamodel.diagnose, datamodel.audit, datamodel.target.accuracy):
        with refused():
            ask(nothing)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.full((1, 8, 8), torch.nan), 0),
        (torch.zeros(1, 5, 5), 0),
        (torch.zeros(4, 8, 8), 0),
        (torch.zeros(1, 8, 8), 0.5),
        (torch.zeros(1, 8, 8), "three"),
        (torch.zeros(1, 8, 8), -1),
        (torch.zeros(1, 8, 8), 10),
        (torch.zeros(1, 8, 8, dtype=torch.complex64), 0),
    ],
    ids=["NaN", "size", "channels", "half a label", "a word", "negative", "too high", "complex"],
)
def test_a_question_that_cannot_be_answered_is_refused(datamodel, x, y, refused):
    for ask in (datamodel.attribute, datamodel.trace):
        with refused():
            ask((x, y))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8])
def test_a_question_in_other_numbers_has_the_same_answer(datamodel, dtype):
    x = torch.arange(64.0).view(1, 8, 8)
    expected, found = (datamodel.attribute((values, 3)) for values in (x, x.to(dtype)))
    np.testing.assert_allclose(found.matrix, expected.matrix)


# --- one and two processes ---


@pytest.mark.slow
def test_fit_and_audit_give_the_same_bytes_in_one_process_and_in_two(command):
    options = "--limit 60 --option width=4 --option depth=1 --epochs 2 --batch-size 16 --clusters 2 "
    options += "--setting curvature=64 --setting bank=8 --seed 3"
    found = {}
    for engine in ("serial", "processes"):
        answer = command("fit", "digits", *options.split(), "--out", engine, "--engine", engine)
        assert answer.code == 0, answer.err
        audit = command("audit", engine, "--retrain", 2, "--unions", 2, "--engine", engine, "--json").json
        files = {name: Path(engine, name).read_bytes() for name in ("synset.safetensors", "synset-class.safetensors")}
        found[engine] = files, {key: value for key, value in audit.items() if key != "seconds"}
    assert found["serial"] == found["processes"]
