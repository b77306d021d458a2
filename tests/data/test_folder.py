import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from published_files import pixels, write_image
from refusals import refused

from ddm.compute import memory
from ddm.data import load


def write_classes(folder, count=5, *, classes=("cat", "dog"), shape=(6, 4, 3), suffix="png", seed=0):
    for label, name in enumerate(classes):
        for index in range(count):
            write_image(folder / name / f"{index}.{suffix}", pixels(*shape, seed=seed + 100 * label + index))


def test_each_folder_is_a_class(tmp_path):
    write_classes(tmp_path, 10)
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog")
    assert data.train.shape == (3, 6, 4)
    assert (len(data.train), len(data.validation), len(data.test)) == (14, 2, 4)
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    at = int(data.train.origin[-1])
    expected = pixels(6, 4, 3, seed=100 + at - 10).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train.raw[-1].numpy(), expected)


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_published_splits_are_read(tmp_path, validation):
    write_classes(tmp_path / "train", 5)
    write_classes(tmp_path / validation, 2, seed=1000)
    write_classes(tmp_path / "test", 3, seed=2000)
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 4, 6)
    np.testing.assert_array_equal(data.validation.raw[0].numpy(), pixels(6, 4, 3, seed=1000).transpose(2, 0, 1))


def test_a_folder_without_splits_is_split(tmp_path):
    write_classes(tmp_path / "train", 10)
    assert len(load(f"folder:{tmp_path}").test) == 4


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "bmp", "gif", "webp", "ppm"])
def test_each_image_format_is_read(tmp_path, suffix):
    write_classes(tmp_path, suffix=suffix, shape=(8, 8, 3))
    assert load(f"folder:{tmp_path}").train.shape == (3, 8, 8)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif"])
def test_grey_images_have_one_channel(tmp_path, suffix):
    write_classes(tmp_path, suffix=suffix, shape=(8, 8))
    assert load(f"folder:{tmp_path}").train.shape == (1, 8, 8)


def test_one_colour_image_makes_all_of_them_colour(tmp_path):
    write_classes(tmp_path / "train", shape=(8, 8))
    write_classes(tmp_path / "test", shape=(8, 8), seed=1)
    write_image(tmp_path / "test" / "dog" / "0.png", pixels(8, 8, 3))
    assert load(f"folder:{tmp_path}").train.shape == (3, 8, 8)


def test_transparency_is_dropped(tmp_path):
    write_classes(tmp_path, shape=(8, 8, 4))
    assert load(f"folder:{tmp_path}").train.shape == (3, 8, 8)


def test_16_bit_grey_is_scaled(tmp_path):
    write_classes(tmp_path / "train", shape=(8, 8))
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    write_image(tmp_path / "test" / "cat" / "0.png", ramp)
    data = load(f"folder:{tmp_path}")
    assert data.train.shape == (1, 8, 8)
    np.testing.assert_allclose(data.test.raw[0, 0].numpy(), ramp / 257, atol=1)


def test_images_of_different_sizes_need_a_size(tmp_path):
    write_classes(tmp_path, shape=(8, 8, 3))
    write_image(tmp_path / "dog" / "9.png", pixels(10, 12, 3))
    with refused("9.png", "12×10", "8×8", "--size"):
        load(f"folder:{tmp_path}")
    data = load(f"folder:{tmp_path}", size=5)
    assert data.train.shape == (3, 5, 5)


def test_resizing_keeps_the_picture(tmp_path):
    write_classes(tmp_path / "train", shape=(8, 8))
    halves = np.repeat(np.array([[40, 200]], np.uint8), 20, 0).repeat(10, 1)
    write_image(tmp_path / "test" / "cat" / "0.png", halves)
    image = load(f"folder:{tmp_path}", size=4).test.raw[0, 0].float()
    assert (image[:, 0] - 40).abs().max() < 10
    assert (image[:, 3] - 200).abs().max() < 10


def test_other_files_are_skipped(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "README.md").write_text("cats and dogs")
    (tmp_path / "cat" / "notes.txt").write_text("a cat")
    (tmp_path / "cat" / "._0.png").write_bytes(b"resource fork")
    (tmp_path / ".cache").mkdir()
    write_image(tmp_path / ".cache" / "0.png", pixels(6, 4, 3))
    (tmp_path / "empty").mkdir()
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog")
    assert len(data.train) + len(data.validation) + len(data.test) == 10


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "bmp"])
@pytest.mark.parametrize("keep", [0, 10, 0.6])
def test_broken_images_are_named(tmp_path, suffix, keep):
    write_classes(tmp_path, suffix=suffix, shape=(40, 40, 3))
    for name in ("cat", "dog"):
        for path in (tmp_path / name).iterdir():
            content = path.read_bytes()
            path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with refused(str(tmp_path / "cat"), "replace or remove"):
        load(f"folder:{tmp_path}")


def test_a_text_file_with_the_suffix_of_an_image_is_refused_by_name(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "dog" / "3.png").write_text("not an image")
    with refused(str(tmp_path / "dog" / "3.png")):
        load(f"folder:{tmp_path}")


def test_an_image_with_too_many_pixels_is_refused(tmp_path, monkeypatch):
    write_classes(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings(), refused("0.png", "exceeds limit"):
        warnings.simplefilter("ignore")
        load(f"folder:{tmp_path}")


def test_a_class_only_in_test_is_refused(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "test", classes=("cat", "fox"))
    with refused(str(tmp_path / "test" / "fox")):
        load(f"folder:{tmp_path}")


def test_missing_and_empty_folders_are_named(tmp_path):
    with refused(str(tmp_path / "nowhere")):
        load(f"folder:{tmp_path / 'nowhere'}")
    with refused(str(tmp_path), "<class>"):
        load(f"folder:{tmp_path}")
    write_classes(tmp_path / "train")
    (tmp_path / "test").mkdir()
    with refused("test is empty"):
        load(f"folder:{tmp_path}")


def test_loading_twice_gives_the_same(tmp_path):
    write_classes(tmp_path, 10)
    one, two = (load(f"folder:{tmp_path}", limit=6) for _ in range(2))
    assert one.train.fingerprint() == two.train.fingerprint()
    assert torch.equal(one.test.origin, two.test.origin)


def test_the_memory_of_all_splits_is_checked_together(tmp_path, monkeypatch):
    write_classes(tmp_path / "train", 10, shape=(20, 20))
    monkeypatch.setattr(memory, "usable_bytes", lambda: 15_000)
    assert load(f"folder:{tmp_path}").train.shape == (1, 20, 20)
    write_classes(tmp_path / "test", 10, shape=(20, 20))
    with refused("folder", "memory", "--limit"):
        load(f"folder:{tmp_path}")
    assert len(load(f"folder:{tmp_path}", limit=8).train) == 8


def test_an_image_that_links_to_itself_is_refused(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "cat" / "9.png").symlink_to(tmp_path / "cat" / "9.png")
    with refused(str(tmp_path / "cat" / "9.png"), "link"):
        load(f"folder:{tmp_path}")


def test_with_a_limit_only_the_drawn_images_are_opened(tmp_path):
    write_classes(tmp_path, 20)
    kept = load(f"folder:{tmp_path}", limit=4)
    chosen = {int(row) for split in (kept.train, kept.validation, kept.test) for row in split.origin}
    for row, path in enumerate(sorted(tmp_path.glob("*/*"), key=lambda path: (path.parent, path.name))):
        if row not in chosen:
            path.write_text("not an image")
    again = load(f"folder:{tmp_path}", limit=4)
    assert again.train.fingerprint() == kept.train.fingerprint()
    assert torch.equal(again.test.raw, kept.test.raw)
    with refused("cannot be read"):
        load(f"folder:{tmp_path}")


def test_a_broken_image_that_was_drawn_is_named(tmp_path):
    write_classes(tmp_path, 20)
    files = sorted(tmp_path.glob("*/*"), key=lambda path: (path.parent, path.name))
    broken = files[int(load(f"folder:{tmp_path}", limit=4).test.origin[-1])]
    broken.write_text("not an image")
    with refused(str(broken)):
        load(f"folder:{tmp_path}", limit=4)
