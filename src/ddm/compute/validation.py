"""Checks of the fields of dataclasses, whose values come from files and users: types, ranges and names."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from ddm.errors import InputError

SEEDS = 2**32
"""Number of random seeds: 0 and above, below this."""

_STRINGS = "a table of names and words"

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a word"),
    "bool": ((bool,), "true or false"),
    "Mapping[str, Any]": ((Mapping,), "a table of names and values"),
    "Mapping[str, str]": ((Mapping,), _STRINGS),
    "dict[str, str]": ((dict,), _STRINGS),
    "Tensor": ((Tensor,), "a tensor"),
}
"""For each annotation, the types that a value may have and their name in messages."""

_UPPER_BOUNDS = {
    **dict.fromkeys(("epochs", "steps", "finetune_steps", "clusters", "perturbations"), 10**6),
    **dict.fromkeys(("batch_size", "checkpoint_every", "limit", "samples", "tests", "validation"), 10**9),
    **dict.fromkeys(("curvature", "bank", "checkpoints", "offset", "ipc"), 10**6),
    **dict.fromkeys(("orders", "seeds", "workers"), 1000),
    "optimizer_steps": 10**9,
    **dict.fromkeys(("unions", "retrainings"), 10**5),
}
"""The maximum of each option: far beyond useful values, so that typing errors are refused before work starts."""


def check_upper_bounds(**values: Any) -> None:
    """Refuse a whole number above the maximum of the option with its name; other values pass."""
    for name, value in values.items():
        if isinstance(value, int) and value > _UPPER_BOUNDS.get(name, value):
            raise InputError(
                f"{name.replace('_', ' ')} must be at most {_UPPER_BOUNDS[name]:,}: give a smaller number."
            )


def check_fields(instance: Any) -> None:
    """Refuse a field of the dataclass ``instance`` whose value has the wrong type or is out of range."""
    for field in fields(instance):
        value: Any = getattr(instance, field.name)
        annotation = str(field.type)
        if value is None and annotation.endswith("| None"):
            continue
        _check_type(field.name, value, annotation.removesuffix(" | None"))
        _check_range(field.name, value, annotation)


def _check_type(name: str, value: Any, annotation: str) -> None:
    types, kind = _TYPES.get(annotation, ((object,), ""))
    fits = isinstance(value, types) and (not isinstance(value, bool) or types in ((object,), (bool,)))
    if fits and kind == _STRINGS:
        fits = all(isinstance(each, str) for each in value.values())
    if not fits:
        raise InputError(f"{name} must be {kind}, not '{value}'.")


def _check_range(name: str, value: Any, annotation: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be finite, not {value}.")
    if "float" in annotation and isinstance(value, int) and abs(value) > 2**53:
        raise InputError(f"{name} is too large: give a number below {2**53:,}.")
    check_upper_bounds(**{name: value})
    if name == "seed" and not 0 <= value < SEEDS:
        raise InputError(f"seed must lie in 0 to {SEEDS - 1}, not {value}.")


def is_finite(value: Any) -> bool:
    """True for a number that fits a float: a file may also hold infinity, or a whole number of a thousand digits."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def are_unique_names(values: Sequence[Any]) -> bool:
    """True if all values are different strings that can be printed."""
    return all(isinstance(value, str) and _is_encodable(value) for value in values) and len(set(values)) == len(values)


def _is_encodable(value: str) -> bool:
    """False for a string with half of a surrogate pair, which cannot be printed. File names may contain these."""
    return not any("\ud800" <= character <= "\udfff" for character in value)
