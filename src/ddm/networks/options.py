"""Validate the options of the built-in networks."""

import operator
from collections.abc import Collection, Sequence
from typing import Any

from ddm.errors import InputError

AXES = {"images": ("channels", "height", "width"), "tables": ("columns",), "token ids": ("length",)}
"""Each kind of inputs, and what the numbers in the shape of one input mean."""

_ADVICE = {
    1: "use mlp for tables, or text-transformer for token ids",
    3: "use convnet or another network for images",
}
"""What to do, by the number of axes of an input that a network does not take."""


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


def check_shape(network: str, inputs: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of one input as a tuple, or refuse it if `network` takes `inputs` of another shape."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else None
    if sizes is None or len(sizes) != len(AXES[inputs]):
        advice = _ADVICE.get(len(sizes or ()), "give the shape of one input")
        axes = ", ".join(AXES[inputs]) + "," * (len(AXES[inputs]) == 1)
        raise InputError(f"{network} takes {inputs} of shape ({axes}), not {shape!r}: {advice}.")
    return tuple(check_integer(f"each number of the shape {sizes}", size) for size in sizes)
