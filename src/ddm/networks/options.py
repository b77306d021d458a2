"""Checks of the options that networks are built with."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

from ddm.errors import InputError


def whole(name: str, value: Any, least: int = 1, most: int = 2**20) -> int:
    """`value` as an int from `least` to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"give {name} as a whole number of at least {least}, not {value!r}.")
    if number > most:
        raise InputError(f"give {name} as a whole number of at most {most}, not {value!r}.")
    return number


def one_of(name: str, value: Any, known: Collection[str]) -> str:
    """`value` if it is one of the `known` words."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"choose {name} from {', '.join(known)}, not {value!r}.")
    return value


def image_shape(shape: Any) -> tuple[int, int, int]:
    """`shape` as (C, H, W), each at least 1."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise InputError(f"give the shape of one input as (channels, height, width), not {shape!r}.")
    channels, height, width = (whole(f"each number of the shape {tuple(shape)}", size) for size in shape)
    return channels, height, width
