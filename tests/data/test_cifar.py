import pickle

import numpy as np
import pytest
from published_files import cifar_batch, python2_pickle, python3_pickle, write_cifar10, write_cifar100
from refusals import refused

from ddm.compute import memory
from ddm.data import load


def as_bytes(value):
    """The value that Python 3 gets when it reads a published file with ``encoding="bytes"``."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_bytes(one) for one in value]
    if isinstance(value, dict):
        return {as_bytes(key): as_bytes(one) for key, one in value.items()}
    return value


def old_numpy_names(content):
    return content.replace(b"numpy._core", b"numpy.core")


WRITERS = {
    "python 2": python2_pickle,
    **{f"protocol {p}": lambda value, p=p: python3_pickle(value, p) for p in range(6)},
    **{f"bytes, protocol {p}": lambda value, p=p: python3_pickle(as_bytes(value), p) for p in range(6)},
    "numpy 1": lambda value: old_numpy_names(python3_pickle(value, 3)),
    "columns first": lambda value: python2_pickle(
        {key: np.asfortranarray(one) if key == "data" else one for key, one in value.items()}
    ),
    "columns first, protocol 5": lambda value: python3_pickle(
        {key: np.asfortranarray(one) if key == "data" else one for key, one in value.items()}, 5
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_every_python_give_the_same_images(tmp_path, writer):
    write_cifar10(tmp_path, dumps=WRITERS[writer])
    data = load("cifar10", tmp_path, validation=0)
    batch = cifar_batch(30, 10, seed=1)
    np.testing.assert_array_equal(data.train.raw.numpy(), batch["data"].reshape(30, 3, 32, 32))
    assert data.train.labels.tolist() == batch["labels"]
    assert data.classes[:2] == ("airplane", "automobile")


def test_the_python_2_writer_writes_what_plain_pickle_reads(tmp_path):
    batch = cifar_batch(30, 10)
    read = pickle.loads(python2_pickle(batch), encoding="latin1")
    np.testing.assert_array_equal(read.pop("data"), batch.pop("data"))
    assert read == batch


def test_batches_may_be_missing_and_are_read_in_order(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py", batches=(4, 2), count=20)
    data = load("cifar10", tmp_path, validation=0)
    expected = np.concatenate([cifar_batch(20, 10, seed=seed)["data"] for seed in (2, 4)])
    np.testing.assert_array_equal(data.train.raw.numpy().reshape(40, -1), expected)
    assert data.train.origin.tolist() == list(range(40))


def test_cifar100_has_the_fine_labels(tmp_path):
    write_cifar100(tmp_path / "cifar-100-python")
    data = load("cifar100", tmp_path, validation=0)
    assert (len(data.train), len(data.test), len(data.classes)) == (300, 100, 100)
    assert data.classes[7] == "fine 7"
    assert data.test.labels.tolist() == list(range(100))


def test_without_the_names_classes_are_numbered(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "batches.meta").unlink()
    assert load("cifar10", tmp_path).classes == tuple("0123456789")


def test_missing_files_are_named(tmp_path):
    with refused("cifar10 needs data_batch_1", str(tmp_path), "--root"):
        load("cifar10", tmp_path)
    with refused("cifar100 needs train", "nowhere"):
        load("cifar100", tmp_path / "nowhere")
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").unlink()
    with refused("cifar10 needs test_batch", str(tmp_path)):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [10] * 30}, "0 to 9"),
        ({"labels": [-1] * 30}, "0 to 9"),
        ({"labels": [2**40] * 30}, "0 to 9"),
        ({"labels": [10**30] * 30}, "whole numbers"),
        ({"labels": [0] * 29}, "labels"),
        ({"labels": ["cat"] * 30}, "labels"),
        ({"labels": [[0] for _ in range(30)]}, "labels"),
        ({"labels": None}, "labels"),
        ({"data": None}, "3072 bytes"),
        ({"data": [[0] * 3072 for _ in range(30)]}, "3072 bytes"),
        ({"data": np.zeros((30, 3071), np.uint8)}, "3072 bytes"),
        ({"data": np.zeros((30, 3072), np.float32)}, "uint8"),
        ({"data": np.zeros((30, 3, 1024), np.uint8)}, "cannot be read"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "labels"),
        ({"data": np.zeros((30, 3072), np.uint8)}, "constant"),
        ({"data": np.array([[None] * 3072] * 30)}, "uint8"),
    ],
)
def test_wrong_contents_are_refused(tmp_path, change, words):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(python3_pickle(cifar_batch(30, 10) | change, 4))
    with refused(words):
        load("cifar10", tmp_path)


def test_labels_do_not_slip_from_one_batch_to_the_next(tmp_path):
    write_cifar10(tmp_path, batches=(1, 2))
    for batch, count in ((1, 29), (2, 31)):
        content = python3_pickle(cifar_batch(30, 10) | {"labels": [0] * count}, 4)
        (tmp_path / f"data_batch_{batch}").write_bytes(content)
    with refused("data_batch_1", "one number per image"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("names", [["a"] * 9, [0] * 10, "airplane", None])
def test_wrong_class_names_are_refused(tmp_path, names):
    write_cifar10(tmp_path)
    (tmp_path / "batches.meta").write_bytes(python3_pickle({"label_names": names}, 4))
    with refused("batches.meta", "10 names"):
        load("cifar10", tmp_path)


def test_the_memory_of_all_files_is_checked_together(tmp_path, monkeypatch):
    write_cifar10(tmp_path, batches=(1, 2, 3), count=60)
    monkeypatch.setattr(memory, "usable_bytes", lambda: 120 * 3072)
    with refused("memory", str(tmp_path)):
        load("cifar10", tmp_path)
    (tmp_path / "data_batch_2").unlink()
    (tmp_path / "data_batch_3").unlink()
    assert len(load("cifar10", tmp_path, validation=0).train) == 60
