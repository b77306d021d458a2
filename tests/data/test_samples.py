import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import pixels
from refusals import refused

from ddm.data import Samples
from ddm.data.labels import MAX_CLASSES


def test_rows_keep_their_origin():
    samples = Samples.from_arrays(pixels(10, 1, 2, 2), np.arange(10))
    part = samples[np.array([7, 2, 5])][[2, 0]]
    assert part.origin.tolist() == [5, 7]
    assert part.labels.tolist() == [5, 7]
    assert torch.equal(part.raw, samples.raw[[5, 7]])


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 2], "labels of shape"),
        ([[0], [1]], "labels of shape"),
        ([0, -1], "-1"),
        ([0, 2], "0 to 1"),
        ([0.0, 0.5], "whole numbers"),
        ([0.0, np.nan], "whole numbers"),
        ([0.0, np.inf], "whole numbers"),
    ],
)
def test_wrong_labels_are_refused(labels, words):
    with refused(words):
        Samples.from_arrays(pixels(2, 1, 2, 2), np.array(labels), ["a", "b"])


class Pairs(torch.utils.data.Dataset):
    """A dataset of 40 images whose labels are ``label(i)`` and whose inputs are changed by ``transform``."""

    def __init__(self, label=lambda i: i % 2, transform=lambda x: x):
        self.images = torch.as_tensor(pixels(40, 1, 4, 4)).float()
        self.label, self.transform = label, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i]), self.label(i)


@pytest.mark.parametrize("label", [lambda i: i / 40, lambda i: torch.tensor(0.5), lambda i: np.nan, lambda i: 1e-9])
def test_labels_of_a_dataset_that_are_not_whole_numbers_are_refused(label):
    with refused("the dataset", "whole numbers"):
        Samples.from_dataset(Pairs(label))


@pytest.mark.parametrize("kind", [int, float, bool, np.uint8, torch.tensor, lambda y: torch.tensor([float(y)])])
def test_whole_labels_of_a_dataset_may_have_any_type(kind):
    samples = Samples.from_dataset(Pairs(lambda i: kind(i % 2)))
    assert samples.labels.tolist() == [0, 1] * 20
    assert samples.labels.dtype == torch.int64


@pytest.mark.parametrize(
    "augment",
    [
        lambda x: x.flip(-1) if torch.rand(()) < 0.5 else x,
        lambda x: x.roll(int(torch.randint(-1, 2, ())), -1),
        lambda x: x + 0.01 * torch.randn_like(x),
    ],
    ids=["flip", "shift", "noise"],
)
def test_a_dataset_with_random_augmentation_gives_a_warning(augment):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="leave random augmentation out"):
        Samples.from_dataset(Pairs(transform=augment))


def test_a_dataset_that_always_returns_the_same_inputs_gives_no_warning(recwarn):
    Samples.from_dataset(Pairs(transform=lambda x: (x - 5) / 3))
    assert not recwarn.list


def test_a_label_too_high_to_number_the_classes_is_refused():
    for label in (MAX_CLASSES, 2**62, 1e300):
        with refused("number the classes"):
            Samples.from_arrays(pixels(2, 1, 2, 2), np.array([0, label]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_in_float32_are_refused(value):
    raw = np.linspace(0, 1, 8).reshape(2, 1, 2, 2)
    raw[0, 0, 0, 0] = value
    with refused("NaN or infinite"):
        Samples.from_arrays(raw, np.array([0, 1]))


@pytest.mark.parametrize("shape", [(0, 1, 2, 2), (2, 0, 2, 2), (2,)])
def test_empty_inputs_are_refused(shape):
    with refused("at least one input"):
        Samples.from_arrays(np.zeros(shape, np.uint8), np.zeros(shape[0], np.int64))


def test_constant_inputs_are_refused():
    with refused("constant", "7"):
        Samples.from_arrays(np.full((3, 1, 2, 2), 7, np.uint8), np.arange(3))


@settings(deadline=None, max_examples=20)
@given(
    offset=st.floats(-1e3, 1e3),
    scale=st.floats(1e-2, 1e3),
    shape=st.sampled_from([(50, 3), (20, 2, 5, 5), (300, 1, 60, 60)]),
)
def test_moments_equal_those_of_numpy(offset, scale, shape):
    raw = (np.random.default_rng(0).normal(size=shape) * scale + offset).astype(np.float32)
    mean, std = Samples.from_arrays(raw, np.zeros(shape[0], np.int64)).moments()
    axes = tuple(axis for axis in range(raw.ndim) if axis != 1)
    assert mean.numpy() == pytest.approx(raw.mean(axes, dtype=np.float64), rel=1e-5, abs=1e-5)
    assert std.numpy() == pytest.approx(raw.std(axes, dtype=np.float64), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_moments_do_not_depend_on_the_unit(scale):
    raw = np.random.default_rng(0).normal(size=(100, 2)) * scale
    samples = Samples.from_arrays(raw, np.zeros(100, np.int64))
    x, _ = samples.with_normalisation(*samples.moments()).batch()
    assert x.std(0, correction=0).numpy() == pytest.approx(np.ones(2), rel=1e-4)


@pytest.mark.parametrize("value", [0, 3, 255])
def test_a_constant_channel_is_not_divided_by_zero(value):
    raw = pixels(10, 2, 3, 3)
    raw[:, 1] = value
    mean, std = Samples.from_arrays(raw, np.zeros(10, np.int64)).moments()
    assert float(mean[1]) == pytest.approx(value / 255)
    assert float(std[1]) == 1
