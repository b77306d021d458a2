"""Hash of a function's code, which tells whether a saved model came from the current version of the function.

The hash covers everything that decides what the function does: its bytecode and constants, its defaults, the values it
closes over, the global values it reads, and the user's functions and classes that it calls. The position of the code in
its file does not matter. Of libraries only names enter the hash. Lists enter it by type and networks by their
printed layers, because a function may change their contents while it runs.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes, PurePath, np.generic, torch.dtype, torch.device)

_LIBRARIES = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent.parent),
)
"""Folders whose code enters the hash only by name: Python, installed packages, and this package."""

_Seen = dict[int, Any]
"""Values hashed already, by id, because functions and objects may refer to each other in cycles."""


def hash_of_code(function: Any) -> str:
    """Hash of a callable's code and the values it depends on, equal in all processes of one Python version."""
    digest = hashlib.sha256()
    for fact in _facts(function, {}):
        digest.update(len(fact).to_bytes(8, "big") + fact)
    return digest.hexdigest()


def _facts(value: Any, seen: _Seen) -> Iterator[bytes]:
    """The bytes of a value that enter the hash."""
    yield type(value).__qualname__.encode()
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, torch.Tensor):
        yield from _tensor(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield b"" if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _each((value.co_names, value.co_consts), seen)
    elif isinstance(value, tuple):
        yield from _each(value, seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(b"".join(_facts(one, seen)) for one in value)
    elif isinstance(value, (ModuleType, nn.Module)):
        yield str(getattr(value, "__name__", value)).encode()
    elif id(value) not in seen:
        seen[id(value)] = value
        yield from _linked(value, seen)


def _tensor(tensor: torch.Tensor) -> Iterator[bytes]:
    yield f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    if tensor.layout is torch.strided and not tensor.is_meta:
        yield tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _linked(value: Any, seen: _Seen) -> Iterator[bytes]:
    """The bytes of a value that may refer back to itself."""
    if isinstance(value, FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif isinstance(value, MethodType):
        yield from _each((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _each((value.func, value.args, value.keywords), seen)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _facts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _facts(value.fget, seen)
    elif isinstance(value, dict):
        for name in sorted(value, key=repr):
            yield from _each((name, value[name]), seen)
    elif not _of_library(type(value)):
        yield from _each((type(value), getattr(value, "__dict__", None)), seen)


def _each(values: Iterable[Any], seen: _Seen) -> Iterator[bytes]:
    for value in values:
        yield from _facts(value, seen)


def _function(function: FunctionType, seen: _Seen) -> Iterator[bytes]:
    code = function.__code__
    yield f"{function.__module__}.{function.__qualname__}".encode()
    if code.co_filename.startswith(_LIBRARIES):
        return
    yield from _each((code, function.__defaults__, function.__kwdefaults__), seen)
    yield from _each((_content(cell) for cell in function.__closure__ or ()), seen)
    for name in sorted(_names(code) & function.__globals__.keys()):
        yield from _each((name, function.__globals__[name]), seen)


def _class(kind: type, seen: _Seen) -> Iterator[bytes]:
    """The bytes of a class: what its body defines, and its bases."""
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if _of_library(kind):
        return
    for name, value in sorted(vars(kind).items()):
        written_by_python = name.startswith("__") and not isinstance(value, FunctionType)
        if not written_by_python:
            yield from _each((name, value), seen)
    yield from _each(kind.__bases__, seen)


def _of_library(kind: type) -> bool:
    """True if a class belongs to Python or an installed package."""
    if kind.__module__ == "__main__" or kind.__module__ not in sys.modules:
        return False
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    return file is None or file.startswith(_LIBRARIES)


def _names(code: CodeType) -> set[str]:
    """Names that code reads, including those of functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None
