"""Read a published CIFAR pickle without running any code that the pickle names.

Such a file is a dictionary of strings, numbers, lists and one uint8 matrix. A pickle builds a matrix by calling numpy.
Here those calls reach stand-ins that only store the bytes and the shape. ``find_class`` refuses every other name
before importing it.

A small file cannot use much memory or time either. Only values without parts may be used twice, so the result is a tree
with at most one node per instruction. The number of instructions is limited. Keys must be text, because an attacker
could choose numbers whose hashes collide.

Files written by Python 2 hold byte strings where Python 3 writes text; both are returned as text.
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
from ddm.data.readers.locate import one_line
from ddm.errors import InputError

# Cached extension codes bypass find_class. No published file has any of these instructions.
REFUSED = {
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "DUP"),
    *("EMPTY_SET", "ADDITEMS", "FROZENSET"),
}
# The largest published file, CIFAR-100's training file, has 200,000 to 800,000 instructions, depending on the protocol.
MAX_INSTRUCTIONS = 1_000_000
# Maximum nesting, such as lists in lists: Python crashes at a hundred thousand levels.
MAX_HEIGHT = 10
# Maximum bytes of memory per instruction, not counting its own data: an empty matrix and its references need most.
BYTES_PER_INSTRUCTION = 512


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, its matrices as ``(n, d)`` uint8."""
    try:
        _check_size(file_size(path), path)
        content = path.read_bytes()
        _inspect(content, path)
        # The encoding "bytes" keeps strings of Python 2, such as the matrix, as bytes.
        batch = _Unpickler(content, path).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle raises many types
        raise InputError(f"'{path}' cannot be read ({one_line(error)}): download it again.") from None
    if not isinstance(batch, dict):
        raise InputError(f"'{path}' does not hold a dictionary as CIFAR's files do: download it again.")
    return {
        text(key): value.values if isinstance(value, _Matrix) else value
        for key, value in batch.items()
        if isinstance(key, (str, bytes))
    }


def text(value: str | bytes) -> str:
    """A string of Python 2 or 3 as text."""
    content = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return content.decode("utf-8", "replace")


def _inspect(content: bytes, path: Path) -> None:
    """Refuse instructions that no published file has, before anything is built."""
    size, values = len(content), _Values()
    for position, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if position == MAX_INSTRUCTIONS:
            raise InputError(
                f"'{path}' has more than {MAX_INSTRUCTIONS:,} pickle instructions, which CIFAR's files never have; no "
                "code was run: download it again from its publisher."
            )
        if opcode.name in REFUSED or not values.follow(opcode, argument, position):
            raise InputError(
                f"'{path}' uses the pickle instruction {opcode.name} as CIFAR's files never do; no code was "
                "run: download it again from its publisher."
            )
        size += BYTES_PER_INSTRUCTION + (4 * len(argument or "") if "UNICODE" in opcode.name else 0)
        _check_size(size, path)


class _Value(NamedTuple):
    """A value that an unpickler would hold.

    height: 0 without parts, else one more than the height of its highest part
    key:    True if it may be a key of a dictionary, as text and results of stand-ins may; numbers and tuples may not,
            because colliding hashes would make the time quadratic
    """

    height: int
    key: bool


class _Values:
    """Tracks the values that an unpickler would hold, without creating them."""

    def __init__(self) -> None:
        self._stack: list[_Value | None] = []  # None for a mark
        self._memo: dict[int, _Value | None] = {}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any, position: int) -> bool:
        """Apply an instruction; False if no published file uses it in this way."""
        if opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
            number = len(self._memo) if opcode.name == "MEMOIZE" else argument
            self._memo[number] = self._stack[-1]
            # The unpickler allocates a memo as long as the highest number in it.
            return bool(number <= position)
        if opcode.name.endswith("GET"):
            value = self._memo.get(argument)
            self._stack.append(value)
            return value is not None and value.height == 0
        popped = self._pop(opcode)
        for kind in opcode.stack_after:
            self._stack.append(None if kind is pickletools.markobject else _result(opcode, kind, popped))
        low = not self._stack or self._stack[-1] is None or self._stack[-1].height <= MAX_HEIGHT
        return low and all(key.key for key in _keys(opcode, popped))

    def _pop(self, opcode: pickletools.OpcodeInfo) -> list[_Value]:
        """Pop the values that an instruction uses, from the top of the stack down."""
        popped = []
        for kind in reversed(opcode.stack_before):
            while kind is pickletools.stackslice and self._stack[-1] is not None:
                popped.append(self._stack.pop())
            if kind is not pickletools.stackslice:
                popped.append(self._stack.pop())
        return [value for value in popped if value is not None]


def _keys(opcode: pickletools.OpcodeInfo, popped: list[_Value]) -> list[_Value]:
    """The dictionary keys among the popped values, where values and keys alternate."""
    return popped[1::2] if opcode.name in ("SETITEM", "SETITEMS", "DICT") else []


def _result(opcode: pickletools.OpcodeInfo, kind: pickletools.StackObject, popped: list[_Value]) -> _Value:
    if opcode.name == "BUILD":
        return popped[-1]  # the object whose state BUILD sets
    if kind.obtype not in (list, tuple, dict, set, frozenset):
        return _Value(0, kind in _KEYS)
    heights = [value.height for value in popped]
    # An instruction that extends a container pops it together with its new parts.
    before = heights.pop() if kind in opcode.stack_before else 1
    return _Value(max(before, 1 + max(heights, default=0)), False)


_KEYS = (pickletools.pystring, pickletools.pybytes, pickletools.pyunicode, pickletools.anyobject)


def _check_size(size: int, path: Path) -> None:
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
                f"'{self._path}' asks for {module}.{name}, which CIFAR's files never do; no code was run: "
                "download it again from its publisher."
            )
        # A new function each time, because a pickle can set attributes on the one it gets.
        return lambda *arguments: self._count_bytes(stand_in(*arguments))

    def _count_bytes(self, value: Any) -> Any:
        """The result of a stand-in. All results together may not have more bytes than the file."""
        self._left -= len(value) if isinstance(value, bytes) else 0
        if self._left < 0:
            raise InputError(f"'{self._path}' would expand to more bytes than it has: download it again.")
        return value


class _Type:
    """Stands in for ``numpy.dtype`` and accepts unsigned bytes only."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise TypeError("pixels that are not uint8")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which do not matter for single bytes."""


class _Matrix:
    """Stands in for ``numpy.ndarray``. ``_reconstruct`` creates it empty, and the state fills it."""

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
