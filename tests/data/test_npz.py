import io
import os
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import Run, pixels
from refusals import refused

from ddm.compute import memory
from ddm.data import load
from ddm.data.labels import MAX_CLASSES
from ddm.errors import InputError


def saved(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def test_all_splits_are_read(tmp_path):
    name = saved(
        tmp_path,
        x_train=pixels(12, 5, 4),
        y_train=np.arange(12) % 3,
        x_val=pixels(6, 5, 4, seed=1),
        y_val=np.arange(6) % 3,
        x_test=pixels(9, 5, 4, seed=2),
        y_test=np.arange(9) % 3,
        classes=np.array(["a", "b", "c"]),
        unrelated=np.zeros(3),
    )
    data = load(name)
    assert (len(data.train), len(data.validation), len(data.test)) == (12, 6, 9)
    assert data.classes == ("a", "b", "c")
    assert data.train.shape == (1, 5, 4)
    np.testing.assert_array_equal(data.validation.raw[:, 0].numpy(), pixels(6, 5, 4, seed=1))


@pytest.mark.parametrize(("x", "y"), [("images", "labels"), ("x", "y"), ("x_train", "y_train")])
def test_a_file_without_splits_is_split(tmp_path, x, y):
    data = load(saved(tmp_path, **{x: pixels(30, 5, 4), y: np.arange(30) % 3}))
    assert (len(data.train), len(data.validation), len(data.test)) == (22, 2, 6)
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ((20, 8, 6), (1, 8, 6)),
        ((20, 8, 6, 1), (1, 8, 6)),
        ((20, 8, 6, 3), (3, 8, 6)),
        ((20, 8, 6, 4), (4, 8, 6)),
        ((20, 1, 8, 6), (1, 8, 6)),
        ((20, 3, 8, 6), (3, 8, 6)),
        ((20, 7, 8, 6), (7, 8, 6)),
        ((20, 3, 4, 4), (3, 4, 4)),
        ((20, 4, 4, 3), (3, 4, 4)),
        ((20, 11), (11,)),
    ],
)
@pytest.mark.parametrize("kind", ["uint8", "float16", ">f8"])
def test_each_layout_and_type_is_read(tmp_path, stored, shape, kind):
    values = pixels(*stored)
    data = load(saved(tmp_path, x=values.astype(kind), y=np.arange(20) % 2), validation=0)
    assert data.train.shape == shape
    assert data.train.raw.dtype == (torch.uint8 if kind == "uint8" and len(stored) > 2 else torch.float32)
    first = values[int(data.train.origin[0])]
    expected = np.moveaxis(first, -1, 0) if stored[1:] != shape and len(stored) == 4 else first
    np.testing.assert_array_equal(data.train.raw[0].numpy(), expected.reshape(shape))


def test_vectors_are_normalised_by_feature(tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 3)) * [1, 10, 100] + [0, 5, -5]
    data = load(saved(tmp_path, x=x, y=np.arange(100) % 2))
    batch, _ = data.train.batch()
    assert batch.mean(0).numpy() == pytest.approx(np.zeros(3), abs=1e-5)
    assert batch.std(0, correction=0).numpy() == pytest.approx(np.ones(3), abs=1e-5)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_strings_are_classes_in_sorted_order(tmp_path, kind):
    y = np.array(["zebra", "ape", "zebra", "cat"] * 5).astype(kind)
    data = load(saved(tmp_path, x_train=pixels(20, 4, 4), y_train=y, x_test=pixels(20, 4, 4), y_test=y), validation=0)
    assert data.classes == ("ape", "cat", "zebra")
    assert data.test.labels.tolist() == [2, 0, 2, 1] * 5


def test_strings_follow_the_given_classes(tmp_path):
    arrays = {"x": pixels(20, 4, 4), "y": np.array(["b", "a"] * 10)}
    data = load(saved(tmp_path, **arrays, classes=np.array(["b", "c", "a"])))
    assert data.classes == ("b", "c", "a")
    assert set(data.train.labels.tolist()) == {0, 2}
    with refused("'a'", "not among its classes"):
        load(saved(tmp_path, **arrays, classes=np.array(["b", "c"])))


def test_a_class_may_be_missing_from_a_split(tmp_path):
    name = saved(
        tmp_path,
        x_train=pixels(20, 4, 4),
        y_train=np.arange(20) % 4,
        x_test=pixels(6, 4, 4),
        y_test=np.arange(6) % 2,
    )
    data = load(name)
    assert data.test.classes == data.train.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize("labels", [np.arange(20)[:, None] % 2, np.arange(20) % 2 * 1.0, np.arange(20) % 2 == 1])
def test_labels_may_be_a_column_whole_floats_or_booleans(tmp_path, labels):
    data = load(saved(tmp_path, x=pixels(20, 4, 4), y=labels))
    assert data.train.labels.dtype == torch.int64
    assert torch.equal(data.train.labels, data.train.origin % 2)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.arange(20) - 1, "from -1 to 18"),
        (np.arange(20) + 0.5, "whole numbers"),
        (np.full(20, np.nan), "whole numbers"),
        (np.full(20, np.inf), "whole numbers"),
        (np.full(20, 2**64 - 1, np.uint64), "number the classes"),
        (np.full(20, 10**9), "number the classes"),
        (np.full(20, 1j), "whole numbers or all strings"),
        (np.arange(19), "20 inputs"),
        (np.eye(20), "one label per sample"),
        (np.array(3), "one label per sample"),
        (np.array([]), "one label per sample"),
        (np.array([b"\xff"] * 20), "cannot be read"),
    ],
)
def test_wrong_labels_are_refused(tmp_path, labels, words):
    with refused(words, "data.npz"):
        load(saved(tmp_path, x=pixels(20, 4, 4), y=labels))


def test_labels_beyond_the_classes_are_refused(tmp_path):
    with refused("with 2 classes they must lie in 0 to 1"):
        load(saved(tmp_path, x=pixels(9, 4, 4), y=np.arange(9) % 3, classes=np.array(["a", "b"])))


def test_numbers_in_one_split_and_strings_in_another_are_refused(tmp_path):
    x = pixels(4, 4, 4)
    with refused("all whole numbers or all strings"):
        load(saved(tmp_path, x_train=x, y_train=np.arange(4), x_test=x, y_test=np.array(list("0123"))))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.full((20, 4, 4), np.nan), "NaN"),
        (np.where(np.arange(320) == 7, np.inf, 0.5).reshape(20, 4, 4), "NaN or infinite"),
        (np.full((20, 4, 4), 1e300), "infinite"),
        (np.full((20, 4, 4), 3, np.uint8), "constant"),
        (np.arange(320).reshape(20, 4, 4), "int64"),
        (np.full((20, 4), "a"), "uint8"),
        (np.arange(20.0), "shape (20,)"),
        (np.zeros((20, 1, 1, 1, 1)), "shape"),
        (np.zeros((20, 0, 4)), "at least one input"),
        (np.zeros((0, 4, 4)), "0 inputs"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_wrong_inputs_are_refused(tmp_path, x, words):
    with refused(words, "data.npz"):
        load(saved(tmp_path, x=x, y=np.arange(20) % 2))


def test_splits_of_different_shape_are_refused(tmp_path):
    y = np.arange(10) % 2
    with refused("make them alike"):
        load(saved(tmp_path, x_train=pixels(10, 4, 4), y_train=y, x_test=pixels(10, 5, 4), y_test=y))


def test_missing_keys_are_named(tmp_path):
    with refused("x_train and y_train"):
        load(saved(tmp_path, a=np.zeros(3)))
    with refused("x_train but not y_train"):
        load(saved(tmp_path, x_train=pixels(10, 4, 4)))
    with refused("x_test but not y_test"):
        load(saved(tmp_path, x=pixels(10, 4, 4), y=np.arange(10) % 2, x_test=pixels(10, 4, 4)))


@pytest.mark.parametrize("key", ["x", "y", "classes"])
def test_objects_are_refused_and_no_code_is_run(tmp_path, key):
    marker = tmp_path / "marker"
    arrays = {"x": pixels(10, 4, 4), "y": np.arange(10) % 2, "classes": np.array(["a", "b"])}
    arrays[key] = np.array([Run(os.mkdir, str(marker))] * 10, dtype=object)
    with refused("plain numbers and strings", "numpy.savez"):
        load(saved(tmp_path, **arrays))
    assert not marker.exists()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "data.npz"
    with refused(str(path), "there is no file"):
        load(f"npz:{path}")
    with refused("damaged"):
        load(f"npz:{tmp_path}")
    for content in (b"", b"text", b"PK\x03\x04", b"\x80\x04N."):
        path.write_bytes(content)
        with refused(str(path)):
            load(f"npz:{path}")
    with path.open("wb") as file:
        np.save(file, pixels(10, 4, 4))
    with refused(str(path)):
        load(f"npz:{path}")


def test_declared_shapes_are_checked_against_the_size_of_the_file(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**14, 4, 4)})
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(160))
    with refused("damaged"):
        load(f"npz:{tmp_path / 'data.npz'}")


def archive(compressed):
    file = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(file, x=pixels(8, 2, 2), y=np.arange(8) % 2)
    return file.getvalue()


ARCHIVES = [archive(True), archive(False)]


@settings(deadline=None)
@given(st.sampled_from(ARCHIVES), st.integers(0, 10**4), st.integers(0, 255), st.booleans())
def test_damaged_files_are_read_or_refused(tmp_path_factory, content, at, byte, cut):
    at %= len(content)
    path = tmp_path_factory.mktemp("npz") / "data.npz"
    path.write_bytes(content[:at] if cut else content[:at] + bytes([byte]) + content[at + 1 :])
    try:
        data = load(f"npz:{path}")
    except InputError:
        return
    assert len(data.train) + len(data.validation) + len(data.test) == 8


def test_the_memory_check_counts_inputs_after_conversion(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "usable_bytes", lambda: 30_000)
    values, labels = pixels(100, 50), np.arange(100) % 2
    assert load(saved(tmp_path, x=values[..., None], y=labels)).train.raw.dtype == torch.uint8
    with refused("memory", "data.npz"):
        load(saved(tmp_path, x=values, y=labels))


def test_the_memory_check_counts_the_overhead_of_each_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "usable_bytes", lambda: 100_000)
    with refused("memory", "data.npz"):
        load(saved(tmp_path, x=pixels(1000, 1, 1), y=np.arange(1000) % 2))


@pytest.mark.parametrize("kind", [np.uint8, "U6"])
def test_too_many_classes_are_refused(tmp_path, kind):
    x, many = pixels(10, 4, 4), np.arange(MAX_CLASSES + 1)
    with refused("data.npz", "100,001 classes"):
        load(saved(tmp_path, x=x, y=np.arange(10) % 2, classes=many.astype(kind)))
