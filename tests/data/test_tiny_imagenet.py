import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from published_files import pixels, write_image, write_tiny_imagenet
from refusals import refused

from ddm.data import load


@pytest.fixture
def folder(tmp_path):
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    return tmp_path / "tiny-imagenet-200"


def test_images_classes_and_the_annotated_test_split(folder):
    data = load("tiny-imagenet", folder.parent, validation=0)
    assert data.classes == ("Egyptian cat", "goldfish", "reel")
    assert data.train.shape == (3, 64, 64)
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    first = np.asarray(Image.open(folder / "train/n02124075/images/n02124075_0.JPEG"))
    np.testing.assert_array_equal(data.train.raw[0].permute(1, 2, 0).numpy(), first)
    third = np.asarray(Image.open(folder / "val/images/val_2.JPEG"))
    np.testing.assert_array_equal(data.test.raw[2].permute(1, 2, 0).numpy(), third)


def test_origin_is_the_position_among_the_sorted_files(folder):
    data = load("tiny-imagenet", folder, limit=6)
    whole = load("tiny-imagenet", folder, validation=0)
    assert torch.equal(data.train.raw, whole.train.raw[data.train.origin])
    assert torch.equal(data.validation.raw, whole.train.raw[data.validation.origin])


def test_images_may_be_missing(folder):
    shutil.rmtree(folder / "train" / "n01443537")
    (folder / "train/n04067472/images/n04067472_0.JPEG").unlink()
    (folder / "val/images/val_0.JPEG").unlink()
    data = load("tiny-imagenet", folder, validation=0)
    assert data.classes == ("Egyptian cat", "reel")
    assert data.train.labels.tolist() == [0] * 5 + [1] * 4
    assert data.test.labels.tolist() == [0, 1, 1]


def test_without_val_the_test_split_is_taken_from_the_training_images(folder):
    shutil.rmtree(folder / "val")
    assert len(load("tiny-imagenet", folder, validation=0).test) == 3


def test_classes_that_share_their_first_name_have_all_names(folder):
    (folder / "words.txt").write_text("n02124075\tcrane, bird\nn01443537\tcrane\nn04067472\treel\n")
    assert load("tiny-imagenet", folder).classes == ("crane, bird", "crane", "reel")


def test_without_words_classes_have_their_identifiers(folder):
    (folder / "words.txt").unlink()
    assert load("tiny-imagenet", folder).classes[1] == "n01443537"


def test_grey_files_are_read_as_colour(folder):
    write_image(folder / "train/n02124075/images/n02124075_0.JPEG", pixels(64, 64))
    first = load("tiny-imagenet", folder, validation=0).train.raw[0]
    assert torch.equal(first[0], first[1])


def test_only_the_drawn_images_are_decoded(folder):
    whole = load("tiny-imagenet", folder, limit=3)
    kept = set(whole.train.origin.tolist()) | set(whole.validation.origin.tolist())
    broken = next(index for index in range(5) if index not in kept)
    (folder / f"train/n02124075/images/n02124075_{broken}.JPEG").write_bytes(b"broken")
    assert torch.equal(load("tiny-imagenet", folder, limit=3).train.raw, whole.train.raw)
    with refused(f"n02124075_{broken}.JPEG"):
        load("tiny-imagenet", folder)


def test_truncated_images_are_named(folder):
    path = folder / "val/images/val_1.JPEG"
    path.write_bytes(path.read_bytes()[:-400])
    with refused(str(path), "replace or remove"):
        load("tiny-imagenet", folder)


def test_images_of_another_size_are_named_and_can_be_resized(folder):
    write_image(folder / "train/n02124075/images/n02124075_1.JPEG", pixels(32, 48, 3))
    with refused("n02124075_1.JPEG", "48×32", "--size"):
        load("tiny-imagenet", folder, validation=0)
    assert load("tiny-imagenet", folder, size=16).train.shape == (3, 16, 16)


def test_missing_files_are_named(tmp_path, folder):
    with refused("tiny-imagenet needs wnids.txt", "'data/tiny-imagenet'"):
        load("tiny-imagenet")
    (folder / "val/val_annotations.txt").unlink()
    with refused("val_annotations.txt"):
        load("tiny-imagenet", folder)
    shutil.rmtree(folder / "train")
    with refused("train/<wnid>/images/*.JPEG", str(folder)):
        load("tiny-imagenet", folder)


def test_an_empty_test_split_is_refused(folder):
    (folder / "val/val_annotations.txt").write_text("\n")
    with refused("test is empty"):
        load("tiny-imagenet", folder)
