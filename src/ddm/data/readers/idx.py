"""MNIST and Fashion-MNIST in idx files, gzipped or plain.

An idx file is two zero bytes, the type (8 = unsigned bytes), the number of dimensions, each dimension as a
big-endian 32-bit number, then the values: ``(n, 28, 28)`` for images (magic number 0x0803), ``(n,)`` for
labels (0x0801).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ddm.compute.memory import check_memory
from ddm.data.readers.locate import Root, find_file, find_folder, one_line
from ddm.data.readers.published import Published
from ddm.data.samples import PER_SAMPLE, Samples
from ddm.errors import InputError

FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Deflate compresses at most 1032 bytes into one.
GZIP_RATIO = 1032


def mnist(root: Root) -> Published:
    """The handwritten digits, 1×28×28."""
    return _read("mnist", root, ["mnist", "MNIST/raw"], [str(digit) for digit in range(10)])


def fashion_mnist(root: Root) -> Published:
    """Pictures of clothes, 1×28×28."""
    return _read("fashion-mnist", root, ["fashion-mnist", "FashionMNIST/raw"], FASHION)


def _read(name: str, root: Root, subfolders: Sequence[str], classes: Sequence[str]) -> Published:
    folder = find_folder(name, root, subfolders, _spellings("train-images", 3))

    def files(prefix: str) -> tuple[Path, Path]:
        stems = (f"{prefix}-images", 3), (f"{prefix}-labels", 1)
        images, labels = (find_file(name, folder, _spellings(stem, dims)) for stem, dims in stems)
        return images, labels

    def split(images: Path, labels: Path, use: str) -> Samples:
        return Samples.from_arrays(read_idx(images, 3)[:, None], read_idx(labels, 1), classes, what=f"{name} {use}")

    train, test = files("train"), files("t10k")
    needed = sum(_value_bytes(images, 3) + PER_SAMPLE * _value_bytes(labels, 1) for images, labels in (train, test))
    check_memory(needed, f"{name} in '{folder}'", "download it again")
    return Published(split(*train, "train"), test=split(*test, "test"))


def _spellings(stem: str, dims: int) -> list[str]:
    return [f"{stem}{mark}idx{dims}-ubyte{gz}" for mark in "-." for gz in ("", ".gz")]


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The uint8 values of an idx file with this many dimensions."""
    with _open(path) as file:
        shape = _shape(file.read(4 + 4 * dims), dims, path)
        size = math.prod(shape)
        # Reading one byte more than declared shows whether the file is longer.
        values = file.read(size + 1) if size <= _max_values(path) else b""
    if len(values) != size:
        length = "more" if len(values) > size else "fewer"
        raise InputError(f"'{path}' declares {size} values but holds {length}: download it again.")
    return np.frombuffer(values, np.uint8).reshape(shape).copy()


def _value_bytes(path: Path, dims: int) -> int:
    """Bytes of memory for a file's values: the number that the header declares, capped at what the file can hold."""
    with _open(path) as file:
        return min(math.prod(_shape(file.read(4 + 4 * dims), dims, path)), _max_values(path))


def _max_values(path: Path) -> int:
    """Maximum number of values that a file of this size can hold."""
    return path.stat().st_size * (GZIP_RATIO if path.suffix == ".gz" else 1)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}' cannot be read ({one_line(error)}): download it again.") from None


def _shape(header: bytes, dims: int, path: Path) -> tuple[int, ...]:
    magic = bytes([0, 0, 8, dims])
    if len(header) != 4 + 4 * dims or header[:4] != magic:
        raise InputError(
            f"'{path}' is not an idx file of unsigned bytes with {dims} dimensions: it starts with "
            f"{header[:4].hex() or 'nothing'}, not {magic.hex()}; download it again."
        )
    return struct.unpack(f">{dims}I", header[4:])
