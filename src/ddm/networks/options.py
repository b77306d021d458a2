"""Validate the options of the built-in networks."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

from ddm.errors import InputError


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int = 2**20) -> int:
    """Return `value` as an int, or refuse it if it is no integer from `minimum` to `maximum`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise InputError(f"give {name} as a whole number of at least {minimum}, not {value!r}.")
    if number > maximum:
        raise InputError(f"give {name} as a whole number of at most {maximum}, not {value!r}.")
    return number


def check_share(name: str, value: Any) -> float:
    """Return `value`, or refuse it if it is not a number from 0 up to but not including 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InputError(f"give {name} as a number from 0 up to but not including 1, not {value!r}.")
    return value


def check_choice(name: str, value: Any, known: Collection[str]) -> str:
    """Return `value`, or refuse it if it is not among the `known` names."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"choose {name} from {', '.join(known)}, not {value!r}.")
    return value


def check_image_shape(shape: Any) -> tuple[int, int, int]:
    """Return `shape` as (C, H, W), or refuse it if it is not three integers of at least 1."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise InputError(f"give the shape of one input as (channels, height, width), not {shape!r}.")
    channels, height, width = (check_integer(f"each number of the shape {tuple(shape)}", size) for size in shape)
    return channels, height, width
