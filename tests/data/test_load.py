import importlib
import itertools
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import pixels, write_mnist
from refusals import refused

import ddm.data
from ddm.data import Data, Samples, load, names
from ddm.data.readers.published import Published, build_splits

OPTIONS = {"limit": None, "validation": 0.1, "seed": 0}


def split(count, classes=3, seed=0):
    return Samples.from_arrays(pixels(count, 1, 4, 4, seed=seed), np.arange(count) % classes)


def finished(published, **options):
    return build_splits("data", published, **OPTIONS | options)


def shares(samples):
    return np.bincount(samples.labels.numpy()) / len(samples)


# --- names and options ---


def test_unknown_names_list_the_known_ones():
    with refused("'imagenet'", *names()):
        load("imagenet")


@pytest.mark.parametrize("name", ["", "Digits", "digits:", "digits:x", "folder", "npz", "hf", "a:b", ":"])
def test_misspelt_names_are_refused(name):
    with refused("there is no dataset"):
        load(name)


@pytest.mark.parametrize("name", ["folder:", "npz:", "hf:"])
def test_a_name_without_its_path_is_refused(name):
    with refused("after the colon"):
        load(name)


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_limit_is_a_positive_whole_number(limit):
    with refused("limit"):
        load("digits", limit=limit)


@pytest.mark.parametrize("validation", [-0.1, 1, 2, math.nan])
def test_validation_is_a_share(validation):
    with refused("validation"):
        load("digits", validation=validation)


@pytest.mark.parametrize("seed", [-1, 0.5])
def test_seed_is_a_whole_number(seed):
    with refused("seed"):
        load("digits", seed=seed)


@pytest.mark.parametrize("size", [0, -8, 2.5, 10**9])
def test_size_is_a_number_of_pixels(size):
    with refused("size"):
        load("tiny-imagenet", size=size)


@pytest.mark.parametrize(
    ("name", "option"),
    [("digits", "root"), ("npz:a.npz", "root"), ("folder:a", "root")],
)
def test_options_a_dataset_cannot_use_are_refused_not_ignored(name, option):
    with refused(name, f"--{option}"):
        load(name, **{option: 8})


def test_importing_needs_none_of_the_heavy_libraries(monkeypatch):
    monkeypatch.setattr(ddm, "data", ddm.data)
    for module in [one for one in sys.modules if one.startswith("ddm.data")]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("sklearn", "PIL", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    assert importlib.import_module("ddm.data").names() == names()


# --- digits ---


def test_digits_need_no_files():
    data = load()
    assert isinstance(data, Data)
    assert (len(data.train), len(data.validation), len(data.test)) == (1294, 144, 359)
    assert data.train.shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert data.train.raw.dtype == torch.uint8
    assert (int(data.train.raw.min()), int(data.train.raw.max())) == (0, 255)


def test_digits_are_stretched_evenly():
    from sklearn.datasets import load_digits

    test = load().test
    published = load_digits().images[test.origin.numpy()]
    np.testing.assert_allclose(test.raw[:, 0].numpy() / 255 * 16, published, atol=0.04)


def test_digits_are_tested_on_the_same_images_whatever_the_seed():
    first, second = load(seed=0), load(seed=1)
    assert torch.equal(first.test.origin, second.test.origin)
    assert not torch.equal(first.validation.origin, second.validation.origin)


# --- splits ---


def test_missing_splits_are_taken_from_the_training_samples():
    data = finished(Published(split(300)))
    assert (len(data.train), len(data.validation), len(data.test)) == (216, 24, 60)
    origins = [data.split(use).origin.tolist() for use in ("train", "validation", "test")]
    assert sorted(itertools.chain(*origins)) == list(range(300))


def test_published_splits_are_kept():
    published = Published(split(30), split(7, seed=1), split(9, seed=2))
    data = finished(published)
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 7, 9)
    assert torch.equal(data.validation.raw, published.validation.raw)
    assert torch.equal(data.test.raw, published.test.raw)


def test_a_lone_validation_split_is_the_test_split():
    published = Published(split(30), validation=split(9, seed=1))
    data = finished(published, validation=0.2)
    assert torch.equal(data.test.raw, published.validation.raw)
    assert (len(data.train), len(data.validation)) == (24, 6)


def test_validation_0_validates_on_the_test_split():
    data = finished(Published(split(30), test=split(9, seed=1)), validation=0)
    assert len(data.train) == 30
    assert torch.equal(data.validation.origin, data.test.origin)
    assert torch.equal(data.validation.raw, data.test.raw)


@settings(deadline=None)
@given(
    classes=st.integers(1, 5),
    per_class=st.integers(2, 20),
    limit=st.none() | st.integers(1, 60),
    validation=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_splits_are_disjoint_stratified_and_repeatable(classes, per_class, limit, validation, seed):
    published = Published(split(classes * per_class, classes), test=split(classes * 4, classes, seed=1))
    data, again = (finished(published, limit=limit, validation=validation, seed=seed) for _ in range(2))
    for use in ("train", "validation", "test"):
        samples = data.split(use)
        assert 1 <= len(samples) <= (limit or math.inf)
        assert torch.equal(samples.origin, again.split(use).origin)
        assert samples.fingerprint() == again.split(use).fingerprint()
        seen = len(set(samples.labels.tolist()))
        if use != "validation":
            assert seen == min(classes, limit or classes)
    assert torch.equal(data.train.raw, published.train.raw[data.train.origin])
    assert torch.equal(data.train.labels, published.train.labels[data.train.origin])
    if validation > 0:
        assert not set(data.train.origin.tolist()) & set(data.validation.origin.tolist())


def test_limits_and_held_out_splits_keep_the_proportions_of_classes():
    labels = np.repeat([0, 1, 2], [500, 300, 200])
    published = Published(Samples.from_arrays(pixels(1000, 1, 4, 4), labels), test=split(60))
    data = finished(published, limit=100, validation=0.2)
    assert shares(data.train) == pytest.approx([0.5, 0.3, 0.2])
    assert shares(data.validation) == pytest.approx([0.5, 0.3, 0.2])
    assert len(data.test) == 60


def test_another_seed_draws_other_samples():
    published = Published(split(300), test=split(90, seed=1))
    one, other = (finished(published, limit=50, seed=seed) for seed in (0, 1))
    for use in ("train", "validation", "test"):
        assert not torch.equal(one.split(use).origin, other.split(use).origin)


def test_the_limit_does_not_move_the_validation_samples():
    published = Published(split(300), test=split(30, seed=1))
    whole, limited = finished(published), finished(published, limit=30)
    assert torch.equal(whole.validation.origin, limited.validation.origin)


def test_one_class_is_allowed():
    data = finished(Published(split(10, classes=1)))
    assert (len(data.train), len(data.validation), len(data.test)) == (7, 1, 2)


def test_a_class_with_one_sample_stays_in_training():
    labels = np.array([0] * 20 + [1])
    data = finished(Published(Samples.from_arrays(pixels(21, 1, 2, 2), labels)), validation=0.5)
    assert 1 in data.train.labels.tolist()


def test_classes_too_small_to_set_samples_aside_are_refused():
    with refused("one sample per class", "test"):
        finished(Published(split(3)))
    with refused("one sample per class", "validation"):
        finished(Published(split(3), test=split(3, seed=1)))


@pytest.mark.parametrize("other", [pixels(9, 1, 4, 5), pixels(9, 3, 4, 4), pixels(9, 1, 4, 4) / np.float32(255)])
def test_splits_with_different_shapes_or_types_are_refused(other):
    with refused("make them alike"):
        finished(Published(split(30), test=Samples.from_arrays(other, np.arange(9) % 3)))


# --- normalisation ---


def test_the_training_split_has_mean_0_and_deviation_1_in_each_channel():
    raw = pixels(200, 3, 4, 4)
    raw[:, 1] //= 3
    raw[:, 2] = 200 + raw[:, 2] % 5
    data = finished(Published(Samples.from_arrays(raw, np.arange(200) % 2)), limit=50)
    x, _ = data.train.batch()
    assert x.mean((0, 2, 3)).numpy() == pytest.approx(np.zeros(3), abs=1e-4)
    assert x.std((0, 2, 3), correction=0).numpy() == pytest.approx(np.ones(3), abs=1e-4)
    for samples in (data.validation, data.test):
        assert torch.equal(samples.mean, data.train.mean)
        assert torch.equal(samples.std, data.train.std)


def test_the_test_split_is_not_normalised_by_itself(tmp_path):
    write_mnist(tmp_path)
    data = load("mnist", tmp_path)
    expected = (data.test.raw / 255 - data.train.mean) / data.train.std
    assert torch.allclose(data.test.batch()[0], expected)
