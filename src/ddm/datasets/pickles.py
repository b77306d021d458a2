"""Read a published CIFAR pickle without running anything a pickle could ask for.

Such a file is a dictionary of strings, numbers, lists and one uint8 matrix. A pickle builds a matrix by
calling numpy; here those calls reach stand-ins that only keep the bytes and the shape. Every other name is
refused, in ``find_class``, before it is looked up.

Files written by Python 2 have byte strings where those re-written by Python 3 have text; both come out as
text.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from ddm.datasets.places import reason
from ddm.errors import InputError

# Extension codes may be cached past find_class, and nothing published has them, persistent ids or instances.
REFUSED = {
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
}


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, its matrices as ``(n, d)`` uint8."""
    try:
        content = path.read_bytes()
        _inspect(content, path)
        # "bytes": old strings, the matrix among them, are kept as they are instead of being decoded.
        batch = _Unpickler(io.BytesIO(content), path).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise InputError(f"'{path}' cannot be read ({reason(error)}): download it again.") from None
    if not isinstance(batch, dict):
        raise InputError(f"'{path}' does not hold a dictionary as CIFAR's files do: download it again.")
    return {
        text(key): value.values if isinstance(value, _Matrix) else value
        for key, value in batch.items()
        if isinstance(key, (str, bytes))
    }


def text(value: str | bytes) -> str:
    """A string as written by Python 2 or 3."""
    content = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return content.decode("utf-8", "replace")


def _inspect(content: bytes, path: Path) -> None:
    """Refuse, before anything is built, what no published file has."""
    for position, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        # The unpickler makes a table as long as the highest number a value is put under.
        too_high = opcode.name.endswith("PUT") and isinstance(argument, int) and argument > position
        if opcode.name in REFUSED or too_high:
            raise InputError(
                f"'{path}' uses the pickle instruction {opcode.name} as CIFAR's files never do; nothing was "
                "run: download it again from its publisher."
            )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stand_in is None:
            raise InputError(
                f"'{self._path}' asks for {module}.{name}, which CIFAR's files never do; nothing was run: "
                "download it again from its publisher."
            )
        # A new function each time: a pickle can set attributes on what it is given.
        return lambda *arguments: stand_in(*arguments)


class _Type:
    """Stands in for ``numpy.dtype``: unsigned bytes, whatever else the pickle says about it."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise TypeError("pixels that are not uint8")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing about single bytes."""


class _Matrix:
    """Stands in for ``numpy.ndarray``. ``_reconstruct`` makes it empty, the state that follows fills it."""

    def __init__(self, *_: object) -> None:
        self.values = np.zeros((0, 0), np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, int], _Type, bool, bytes]) -> None:
        _, shape, kind, columns_first, content = state
        self.values = _matrix(content, kind, shape, columns_first)


def _from_buffer(content: bytes, kind: _Type, shape: tuple[int, int], order: str) -> _Matrix:
    """Stands in for numpy's way of unpickling since protocol 5."""
    matrix = _Matrix()
    matrix.values = _matrix(content, kind, shape, order == "F")
    return matrix


def _matrix(content: bytes, kind: _Type, shape: tuple[int, int], columns_first: bool) -> np.ndarray:
    rows, columns = shape
    if not isinstance(kind, _Type):
        raise TypeError("a matrix without a type")
    return np.frombuffer(content, np.uint8).reshape((rows, columns), order="F" if columns_first else "C")


def _encode(content: str, encoding: str) -> bytes:
    """Stands in for ``_codecs.encode``, with which Python 3 writes bytes into protocols 0 to 2."""
    return content.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Matrix,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Matrix,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}
