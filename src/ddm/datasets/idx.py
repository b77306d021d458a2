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
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddm.datasets.places import Root, file_in, folder_with, reason
from ddm.datasets.published import Published
from ddm.datasets.samples import Samples
from ddm.errors import InputError
from ddm.memory import check_room

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
# Deflate cannot pack more than 1032 bytes into one.
GZIP_RATIO = 1032


def mnist(root: Root) -> Published:
    """The handwritten digits, 1×28×28."""
    return _read("mnist", root, ["mnist", "MNIST/raw"], [str(digit) for digit in range(10)])


def fashion_mnist(root: Root) -> Published:
    """Pictures of clothes, 1×28×28."""
    return _read("fashion-mnist", root, ["fashion-mnist", "FashionMNIST/raw"], FASHION)


def _read(name: str, root: Root, published: Sequence[str], classes: Sequence[str]) -> Published:
    folder = folder_with(name, root, published, _spellings("train-images", 3))

    def split(prefix: str, use: str) -> Samples:
        images = read_idx(file_in(name, folder, _spellings(f"{prefix}-images", 3)), 3)
        labels = read_idx(file_in(name, folder, _spellings(f"{prefix}-labels", 1)), 1)
        return Samples.make(images[:, None], labels, classes, what=f"{name} {use}")

    return Published(split("train", "train"), test=split("t10k", "test"))


def _spellings(stem: str, dims: int) -> list[str]:
    return [f"{stem}{mark}idx{dims}-ubyte{gz}" for mark in "-." for gz in ("", ".gz")]


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The uint8 values of an idx file with this many dimensions."""
    zipped = path.suffix == ".gz"
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            shape = _shape(file.read(4 + 4 * dims), dims, path)
            size = math.prod(shape)
            # Refused before memory is asked for; one byte more than declared shows if the file goes on.
            possible = path.stat().st_size * (GZIP_RATIO if zipped else 1)
            check_room(min(size, possible), f"'{path}'", "download it again")
            values = file.read(size + 1) if size <= possible else b""
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}' cannot be read ({reason(error)}): download it again.") from None
    if len(values) != size:
        length = "more" if len(values) > size else "fewer"
        raise InputError(f"'{path}' declares {size} values but holds {length}: download it again.")
    return np.frombuffer(values, np.uint8).reshape(shape).copy()


def _shape(header: bytes, dims: int, path: Path) -> tuple[int, ...]:
    magic = bytes([0, 0, 8, dims])
    if len(header) != 4 + 4 * dims or header[:4] != magic:
        raise InputError(
            f"'{path}' is not an idx file of unsigned bytes with {dims} dimensions: it starts with "
            f"{header[:4].hex() or 'nothing'}, not {magic.hex()}; download it again."
        )
    return struct.unpack(f">{dims}I", header[4:])
