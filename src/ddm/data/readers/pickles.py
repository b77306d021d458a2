"""Read a published CIFAR pickle without running anything a pickle could ask for.

Such a file is a dictionary of strings, numbers, lists and one uint8 matrix. A pickle builds a matrix by
calling numpy; here those calls reach stand-ins that only keep the bytes and the shape. Every other name is
refused, in ``find_class``, before it is looked up. Nor does a small file make something large or slow: only what
holds nothing else may be used again, so that what is made is a tree of at most as many parts as instructions;
instructions are counted; and keys are text, whose hashes nobody can choose.

Files written by Python 2 have byte strings where those re-written by Python 3 have text; both come out as
text.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddm.compute.files import file_size
from ddm.compute.memory import check_memory
from ddm.data.readers.places import reason
from ddm.errors import InputError

# Extension codes may be cached past find_class, and nothing published has them, persistent ids, instances or doubles.
REFUSED = {
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "DUP"),
    *("EMPTY_SET", "ADDITEMS", "FROZENSET"),
}
# The largest published file, CIFAR-100's training file, has 200,000 to 800,000, depending on the protocol.
MOST_INSTRUCTIONS = 1_000_000
# Lists in lists, and so on: Python fails on a hundred thousand.
HIGHEST = 10
# The most that an instruction makes beside the bytes it carries: an empty matrix, with its place in lists and tables.
MADE = 512


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, its matrices as ``(n, d)`` uint8."""
    try:
        _check_room(file_size(path), path)
        content = path.read_bytes()
        _inspect(content, path)
        # "bytes": old strings, the matrix among them, are kept as they are instead of being decoded.
        batch = _Unpickler(content, path).load()
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
    size, values = len(content), _Values()
    for position, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if position == MOST_INSTRUCTIONS:
            raise InputError(
                f"'{path}' has more than {MOST_INSTRUCTIONS:,} pickle instructions, as CIFAR's files never do; nothing "
                "was run: download it again from its publisher."
            )
        if opcode.name in REFUSED or not values.follow(opcode, argument, position):
            raise InputError(
                f"'{path}' uses the pickle instruction {opcode.name} as CIFAR's files never do; nothing was "
                "run: download it again from its publisher."
            )
        size += MADE + (4 * len(argument or "") if "UNICODE" in opcode.name else 0)
        _check_room(size, path)


class _Value(NamedTuple):
    """A value that an unpickler would hold.

    height: 0 if it holds nothing else, or one more than its highest part
    key:    whether it may be a key: text and what a stand-in makes; an attacker can choose numbers and tuples so that
            their hashes collide, and the time of a table of them grows with its square
    """

    height: int
    key: bool


class _Values:
    """The values that an unpickler would hold, followed without making them."""

    def __init__(self) -> None:
        self._stack: list[_Value | None] = []  # None for a mark
        self._kept: dict[int, _Value | None] = {}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any, position: int) -> bool:
        """Do as an instruction says; False where no published file has it do so."""
        if opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
            number = len(self._kept) if opcode.name == "MEMOIZE" else argument
            self._kept[number] = self._stack[-1]
            # The unpickler makes a table as long as the highest number a value is put under.
            return bool(number <= position)
        if opcode.name.endswith("GET"):
            kept = self._kept.get(argument)
            self._stack.append(kept)
            return kept is not None and kept.height == 0
        taken = self._take(opcode)
        for kind in opcode.stack_after:
            self._stack.append(None if kind is pickletools.markobject else _made(opcode, kind, taken))
        low = not self._stack or self._stack[-1] is None or self._stack[-1].height <= HIGHEST
        return low and all(key.key for key in _keys(opcode, taken))

    def _take(self, opcode: pickletools.OpcodeInfo) -> list[_Value]:
        """What an instruction takes, the lowest on the stack last."""
        taken = []
        for kind in reversed(opcode.stack_before):
            while kind is pickletools.stackslice and self._stack[-1] is not None:
                taken.append(self._stack.pop())
            if kind is not pickletools.stackslice:
                taken.append(self._stack.pop())
        return [value for value in taken if value is not None]


def _keys(opcode: pickletools.OpcodeInfo, taken: list[_Value]) -> list[_Value]:
    """The keys of a table among what an instruction took: values and keys in turn, the last value first."""
    return taken[1::2] if opcode.name in ("SETITEM", "SETITEMS", "DICT") else []


def _made(opcode: pickletools.OpcodeInfo, kind: pickletools.StackObject, taken: list[_Value]) -> _Value:
    if opcode.name == "BUILD":
        return taken[-1]  # what was there already, with a state
    if kind.obtype not in (list, tuple, dict, set, frozenset):
        return _Value(0, kind in _KEYS)
    heights = [value.height for value in taken]
    # What grows was taken with its parts, and is not one of them.
    grown = heights.pop() if kind in opcode.stack_before else 1
    return _Value(max(grown, 1 + max(heights, default=0)), False)


_KEYS = (pickletools.pystring, pickletools.pybytes, pickletools.pyunicode, pickletools.anyobject)


def _check_room(size: int, path: Path) -> None:
    check_memory(size, f"'{path}'", "download it again")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path
        self._left = len(content)

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stand_in is None:
            raise InputError(
                f"'{self._path}' asks for {module}.{name}, which CIFAR's files never do; nothing was run: "
                "download it again from its publisher."
            )
        # A new function each time: a pickle can set attributes on what it is given.
        return lambda *arguments: self._counted(stand_in(*arguments))

    def _counted(self, made: Any) -> Any:
        """What a stand-in returned: bytes are no more in all than the file has, however often a string is encoded."""
        self._left -= len(made) if isinstance(made, bytes) else 0
        if self._left < 0:
            raise InputError(f"'{self._path}' makes more bytes than it has: download it again from its publisher.")
        return made


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
