import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import idx, pixels, write_mnist
from refusals import refused

from ddm.compute import memory
from ddm.data import load
from ddm.data.readers.idx import read_idx
from ddm.errors import InputError


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_images_and_labels_are_read_as_they_were_written(tmp_path, zipped, mark):
    write_mnist(tmp_path, zipped=zipped, mark=mark)
    data = load("mnist", tmp_path, validation=0)
    assert data.train.shape == (1, 28, 28)
    assert data.classes == tuple("0123456789")
    np.testing.assert_array_equal(data.train.raw[:, 0].numpy(), pixels(40, 28, 28))
    np.testing.assert_array_equal(data.test.labels.numpy(), np.arange(20) % 10)


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_root_is_the_folder_itself_or_the_one_above(tmp_path, folder):
    write_mnist(tmp_path / folder)
    assert len(load("mnist", tmp_path).test) == 20


def test_fashion_mnist_is_not_mistaken_for_mnist_next_to_it(tmp_path):
    write_mnist(tmp_path / "mnist")
    with refused("fashion-mnist needs train-images-idx3-ubyte", str(tmp_path)):
        load("fashion-mnist", tmp_path)
    write_mnist(tmp_path / "fashion-mnist", train=50)
    data = load("fashion-mnist", tmp_path, validation=0)
    assert len(data.train) == 50
    assert data.classes[9] == "Ankle boot"


def test_without_root_the_files_are_sought_in_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("mnist needs train-images-idx3-ubyte or", "in 'data/mnist'", "--root"):
        load("mnist")
    write_mnist(tmp_path / "data" / "mnist")
    assert len(load("mnist").test) == 20


@pytest.mark.parametrize("file", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_each_missing_file_is_named(tmp_path, file):
    write_mnist(tmp_path)
    (tmp_path / f"{file}.gz").unlink()
    with refused(f"{file} or {file}.gz", str(tmp_path)):
        load("mnist", tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:200],
        lambda content: content[:10],
        lambda content: b"",
        lambda content: content + b"\0",
        lambda content: b"\x1f\x8b" + content[2:],
        lambda content: b"\0\0\x0d\x03" + content[4:],
        lambda content: content[:3] + b"\x01" + content[4:],
    ],
    ids=["last byte", "short", "header", "empty", "too long", "gzip magic", "floats", "one dimension"],
)
def test_damaged_files_are_refused_by_name(tmp_path, damage, zipped):
    path = tmp_path / ("images.gz" if zipped else "images")
    content = damage(idx(pixels(4, 28, 28)))
    path.write_bytes(gzip.compress(content) if zipped else content)
    with refused(str(path), "download it again"):
        read_idx(path, 3)


@pytest.mark.parametrize("cut", [1, 8, 100])
def test_truncated_gzip_is_refused(tmp_path, cut):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(pixels(4, 28, 28)))[:-cut])
    with refused(str(path)):
        read_idx(path, 3)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("side", [2**31, 2**32 - 1])
def test_the_declared_size_is_checked_before_memory_is_allocated(tmp_path, suffix, side):
    content = bytes([0, 0, 8, 3]) + struct.pack(">3I", side, side, side) + bytes(1000)
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with refused("holds fewer"):
        read_idx(path, 3)


def test_a_gzip_bomb_is_not_unpacked_beyond_what_it_declares(tmp_path, monkeypatch):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx(np.zeros(10, np.uint8)) + bytes(5_000_000)))
    unpacked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda self, size: unpacked.append(content := read(self, size)) or content
    )
    with refused("declares 10 values but holds more"):
        read_idx(path, 1)
    assert sum(map(len, unpacked)) == 8 + 11


@pytest.mark.parametrize("shape", [(0, 28, 28), (3, 0, 28), (3, 28, 0)])
def test_empty_images_are_refused(tmp_path, shape):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(shape, np.uint8))))
    with refused("at least one input"):
        load("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path):
    write_mnist(tmp_path)
    labels = np.full(40, 10, np.uint8)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    with refused("mnist train", "10"):
        load("mnist", tmp_path)


def test_fewer_labels_than_images_are_refused(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(19, np.uint8))))
    with refused("mnist test", "20 inputs"):
        load("mnist", tmp_path)


def test_constant_images_are_refused(tmp_path):
    write_mnist(tmp_path)
    black = idx(np.zeros((40, 28, 28), np.uint8))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(black))
    with refused("mnist train is constant"):
        load("mnist", tmp_path)


@settings(deadline=None)
@given(content=st.binary(max_size=80), header=st.booleans(), zipped=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, header, zipped):
    path = tmp_path_factory.mktemp("idx") / ("file.gz" if zipped else "file")
    content = (b"\0\0\x08\x01" if header else b"") + content
    path.write_bytes(gzip.compress(content) if zipped else content)
    try:
        values = read_idx(path, 1)
    except InputError:
        return
    assert idx(values) == content


def test_the_memory_of_all_splits_is_checked_together(tmp_path, monkeypatch):
    write_mnist(tmp_path, train=40, test=40)
    monkeypatch.setattr(memory, "usable_bytes", lambda: 60 * 28 * 28)
    with refused("mnist", "memory", "download it again"):
        load("mnist", tmp_path)
    write_mnist(tmp_path, train=20, test=20)
    assert len(load("mnist", tmp_path).test) == 20
