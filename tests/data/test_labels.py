import numpy as np
import pytest
from refusals import refused

from ddm.data.labels import MAX_CLASSES, encode_labels


def test_all_splits_share_the_classes():
    classes, labels = encode_labels({"train": ["b", "a"], "test": ["c", "b"]}, None, "data")
    assert classes == ("a", "b", "c")
    assert labels["train"].tolist() == [1, 0]
    assert labels["test"].tolist() == [2, 1]


def test_without_names_classes_are_numbered_up_to_the_highest_label_of_all_splits():
    classes, labels = encode_labels({"train": [0, 2], "test": [4]}, None, "data")
    assert classes == ("0", "1", "2", "3", "4")
    assert labels["test"].tolist() == [4]


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0], [0, 10**18]])
def test_numbers_must_be_positions_in_the_classes(labels):
    with refused("data", "0 to 1"):
        encode_labels({"train": [0, 1], "test": labels}, ["a", "b"], "data")


@pytest.mark.parametrize("labels", [[0, None], [[0], [1, 2]], [0, 10**30], [{}], []])
def test_labels_that_are_not_one_number_or_string_per_sample_are_refused(labels):
    with refused("data", "labels"):
        encode_labels({"train": labels}, None, "data")


def test_too_many_different_strings_are_refused():
    with refused("data", "different labels"):
        encode_labels({"train": np.arange(MAX_CLASSES + 1).astype(str)}, None, "data")
