"""Arrays in a numpy ``.npz`` file.

Keys ``x_train, y_train[, x_val, y_val][, x_test, y_test]``, or one set of ``images, labels`` or ``x, y``; and
``classes``, the names, if wanted. Inputs are uint8 (0 … 255) or floating point, of shape ``(n, H, W)``,
``(n, H, W, C)`` with 1, 3 or 4 channels, ``(n, C, H, W)``, or ``(n, d)`` for vectors. Labels are whole
numbers or strings, ``(n,)``. Where both image layouts fit, channels come first if that makes the images
square.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ddm.datasets.labels import number
from ddm.datasets.published import Published
from ddm.datasets.samples import Samples
from ddm.errors import InputError
from ddm.memory import check_room

SPLITS = {"train": ("x_train", "y_train"), "validation": ("x_val", "y_val"), "test": ("x_test", "y_test")}
UNSPLIT = (("images", "labels"), ("x", "y"))
CHANNELS = (1, 3, 4)


def read(path: str) -> Published:
    """The splits in the file."""
    arrays = _arrays(Path(path).expanduser())
    keys = _keys(arrays, path)
    classes = [str(name) for name in arrays["classes"].ravel()] if "classes" in arrays else None
    classes_found, labels = number({split: arrays[y] for split, (_, y) in keys.items()}, classes, path)
    return Published(
        **{
            split: Samples.make(_inputs(arrays[x], f"{path} {x}"), labels[split], classes_found, what=f"{path} {split}")
            for split, (x, _) in keys.items()
        }
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    wanted = {key for pair in (*SPLITS.values(), *UNSPLIT) for key in pair} | {"classes"}
    if not path.exists():
        raise InputError(f"there is no file '{path}': give the path of an .npz file.")
    try:
        if not path.is_file():
            raise ValueError("a folder, or a pipe that need not end")
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.removesuffix(".npy") in wanted]
            check_room(sum(member.file_size for member in members), f"'{path}'", "save fewer or smaller samples")
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
    except InputError:
        raise
    except Exception:  # a damaged archive can raise almost anything; numpy's words advise to allow pickles
        raise InputError(
            f"'{path}' is damaged or not an .npz file of plain numbers and strings: save it with numpy.savez."
        ) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, read only if the file holds as many bytes as its header declares."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not dtype.itemsize or file.tell() + size != member.file_size:
            raise ValueError("the header does not describe what follows")
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _keys(arrays: Mapping[str, np.ndarray], path: str) -> dict[str, tuple[str, str]]:
    """The keys of inputs and labels for each split the file has."""
    whole = [pair for pair in UNSPLIT if pair[0] in arrays]
    keys = {split: pair for split, pair in SPLITS.items() if pair[0] in arrays}
    if "train" not in keys:
        if not whole:
            raise InputError(f"'{path}' needs the keys x_train and y_train, images and labels, or x and y.")
        keys["train"] = whole[0]
    for x, y in keys.values():
        if y not in arrays:
            raise InputError(f"'{path}' has {x} but not {y}: save the labels under that key.")
    return keys


def _inputs(x: np.ndarray, what: str) -> np.ndarray:
    """``(n, C, H, W)`` as stored, or ``(n, d)`` float32."""
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise InputError(f"{what} holds {x.dtype}: store uint8 (0 to 255) or floating point.")
    if x.ndim not in (2, 3, 4):
        raise InputError(f"{what} has shape {x.shape}: make it (n, H, W), (n, H, W, C), (n, C, H, W) or (n, d).")
    if x.dtype != np.uint8 or x.ndim == 2:
        with np.errstate(over="ignore"):  # what becomes infinite is refused with what was
            x = x.astype(np.float32)
    if x.ndim == 4 and _channels_last(x.shape):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    return np.ascontiguousarray(x)


def _channels_last(shape: tuple[int, ...]) -> bool:
    _, first, middle, last = shape
    return last in CHANNELS and not (first in CHANNELS and middle == last)
