"""Arrays in a numpy ``.npz`` file.

Keys ``x_train, y_train[, x_val, y_val][, x_test, y_test]``, or one set of ``images, labels`` or ``x, y``; and
optionally ``classes``, the names. Inputs are uint8 (0 … 255) or floating point, of shape ``(n, H, W)``,
``(n, H, W, C)`` with 1, 3 or 4 channels, ``(n, C, H, W)``, or ``(n, d)`` for vectors. Labels are whole
numbers or strings, ``(n,)``. Where both image layouts fit, channels come first if that makes the images
square.
"""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddm.compute.memory import check_memory
from ddm.data.labels import MAX_CLASSES, encode_labels
from ddm.data.readers.published import Published
from ddm.data.samples import PER_SAMPLE, Samples
from ddm.errors import InputError

SPLITS = {"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")}
UNSPLIT = (("images", "labels"), ("x", "y"))
CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class _Header:
    """Shape and type of an array, known before its values are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def read(path: str) -> Published:
    """The splits in the file."""
    keys, arrays = _arrays(Path(path).expanduser(), path)
    classes = [str(name) for name in arrays["classes"].ravel()] if "classes" in arrays else None
    all_classes, labels = encode_labels({split: arrays[y] for split, (_, y) in keys.items()}, classes, path)
    splits = {
        split: Samples.from_arrays(_inputs(arrays[x]), labels[split], all_classes, what=f"{path} {split}")
        for split, (x, _) in keys.items()
    }
    return Published(splits["train"], splits.get("validation"), splits.get("test"))


def _arrays(file: Path, path: str) -> tuple[dict[str, tuple[str, str]], dict[str, np.ndarray]]:
    """The keys of each split and their arrays; headers are checked before any array is read."""
    wanted = {key for pair in (*SPLITS.values(), *UNSPLIT) for key in pair} | {"classes"}
    if not file.exists():
        raise InputError(f"there is no file '{file}': give the path of an .npz file.")
    try:
        if not file.is_file():
            raise ValueError("not a regular file")
        with zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            headers = {key: _header(archive, members[key]) for key in sorted(wanted & members.keys())}
            keys = _keys(headers, path)
            used = [key for pair in keys.values() for key in pair] + ["classes"] * ("classes" in headers)
            _check(keys, {key: headers[key] for key in used}, path)
            return keys, {key: _array(archive, members[key]) for key in used}
    except InputError:
        raise
    except Exception:  # damaged archives raise many types, and numpy's messages advise to allow pickles
        raise InputError(
            f"'{file}' is damaged or not an .npz file of plain numbers and strings: save it with numpy.savez."
        ) from None


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    """The header of an array; ``ValueError`` if the archive does not hold as many bytes as the header declares."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        header = _Header(shape, dtype)
        if dtype.hasobject or not dtype.itemsize or file.tell() + header.size * dtype.itemsize != member.file_size:
            raise ValueError("the header does not describe what follows")
    return header


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.kind == "U" and _code_points(array).max(initial=0) > sys.maxunicode:
        raise ValueError("text with invalid characters")
    return array


def _code_points(text: np.ndarray) -> np.ndarray:
    """The Unicode code points of an array of strings, flat."""
    native = np.ascontiguousarray(text, text.dtype.newbyteorder("="))
    numbers: np.ndarray = np.frombuffer(native.data, np.uint32)
    return numbers


def _keys(headers: Mapping[str, _Header], path: str) -> dict[str, tuple[str, str]]:
    """The keys of inputs and labels for each split in the file."""
    unsplit = [pair for pair in UNSPLIT if pair[0] in headers]
    keys = {split: pair for split, pair in SPLITS.items() if pair[0] in headers}
    if "train" not in keys:
        if not unsplit:
            raise InputError(f"'{path}' needs the keys x_train and y_train, images and labels, or x and y.")
        keys["train"] = unsplit[0]
    for x, y in keys.values():
        if y not in headers:
            raise InputError(f"'{path}' has {x} but not {y}: save the labels under that key.")
    return keys


def _check(keys: Mapping[str, tuple[str, str]], headers: Mapping[str, _Header], path: str) -> None:
    """Check the headers, so that bad arrays are refused before they are read."""
    for x, y in keys.values():
        _check_inputs(headers[x], f"{path} {x}")
        count, labels = headers[x].shape[0], headers[y].shape
        if labels[:1] != (count,):
            raise InputError(f"{path} has {count} inputs {x} but {y} of shape {labels}: give one label per sample.")
    if "classes" in headers and headers["classes"].size > MAX_CLASSES:
        raise InputError(f"{path} has {headers['classes'].size:,} classes: name {MAX_CLASSES:,} at most.")
    stored = sum(header.size * header.dtype.itemsize for header in headers.values())
    in_memory = sum(_bytes_in_memory(headers[x], headers[y]) for x, y in keys.values())
    check_memory(stored + in_memory, f"'{path}'", "save fewer or smaller samples")


def _check_inputs(x: _Header, what: str) -> None:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise InputError(f"{what} holds {x.dtype}: store uint8 (0 to 255) or floating point.")
    if len(x.shape) not in (2, 3, 4):
        raise InputError(f"{what} has shape {x.shape}: make it (n, H, W), (n, H, W, C), (n, C, H, W) or (n, d).")


def _bytes_in_memory(x: _Header, y: _Header) -> int:
    """Bytes of memory that a split needs after reading; labels of bytes become text with four bytes per character."""
    inputs = x.size * (1 if _stays_uint8(x.dtype, len(x.shape)) else 4)
    return inputs + y.size * (PER_SAMPLE + (4 * y.dtype.itemsize if y.dtype.kind == "S" else 0))


def _stays_uint8(dtype: np.dtype[Any], dims: int) -> bool:
    """True for images of uint8; all other inputs become float32."""
    return dtype == np.uint8 and dims > 2


def _inputs(x: np.ndarray) -> np.ndarray:
    """``(n, C, H, W)`` as stored, or ``(n, d)`` float32."""
    if not _stays_uint8(x.dtype, x.ndim):
        with np.errstate(over="ignore"):  # a later check refuses infinite values
            x = x.astype(np.float32)
    if x.ndim == 4 and _channels_last(x.shape):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    return np.ascontiguousarray(x)


def _channels_last(shape: tuple[int, ...]) -> bool:
    _, first, middle, last = shape
    return last in CHANNELS and not (first in CHANNELS and middle == last)
