"""Checks that the fields of a dataclass hold what their annotations say, for values that come from files and people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from ddm.errors import InputError

_WORDS = "a table of names and words"

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a word"),
    "bool": ((bool,), "true or false"),
    "Mapping[str, Any]": ((Mapping,), "a table of names and values"),
    "Mapping[str, str]": ((Mapping,), _WORDS),
    "dict[str, str]": ((dict,), _WORDS),
    "Tensor": ((Tensor,), "a tensor"),
}


_MOST = {
    **dict.fromkeys(("epochs", "steps", "finetune_steps", "clusters", "perturbations"), 10**6),
    **dict.fromkeys(("batch_size", "checkpoint_every", "limit", "samples", "tests", "validation"), 10**9),
    **dict.fromkeys(("curvature", "bank", "checkpoints", "offset", "ipc"), 10**6),
    **dict.fromkeys(("orders", "seeds", "workers"), 1000),
    "optimizer_steps": 10**9,
    **dict.fromkeys(("unions", "retrainings"), 10**5),
}
"""The largest value of each option: far beyond what is useful, so that a slip is refused before work starts."""


def check_upper_bounds(**values: Any) -> None:
    """Refuse a number that is larger than the option of its name may be; None and other kinds of values pass."""
    for name, value in values.items():
        if isinstance(value, int) and value > _MOST.get(name, value):
            raise InputError(f"{name.replace('_', ' ')} must be at most {_MOST[name]:,}: give a smaller number.")


def check_fields(instance: Any) -> None:
    """Refuse a field of ``instance`` that is not of its type, a number that is not finite or too large, or a seed
    out of range.
    """
    for field in fields(instance):
        value: Any = getattr(instance, field.name)
        annotation = str(field.type)
        if value is None and annotation.endswith("| None"):
            continue
        types, kind = _KINDS.get(annotation.removesuffix(" | None"), ((object,), ""))
        if not isinstance(value, types) or (isinstance(value, bool) and types not in ((object,), (bool,))):
            raise InputError(f"{field.name} must be {kind}, not '{value}'.")
        if isinstance(value, Mapping) and kind == _WORDS and {type(each) for each in value.values()} - {str}:
            raise InputError(f"{field.name} must be {kind}, not '{value}'.")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{field.name} must be finite, not {value}.")
        if "float" in annotation and isinstance(value, int) and abs(value) > 2**53:
            raise InputError(f"{field.name} must be a number of ordinary size.")
        check_upper_bounds(**{field.name: value})
        if field.name == "seed" and not 0 <= getattr(instance, "seed") < 2**32:  # noqa: B009 - not every one has it
            raise InputError(f"seed must lie in 0 to {2**32 - 1}, not {value}.")


def are_unique_names(values: Sequence[Any]) -> bool:
    """Whether these are words that can be printed, each another."""
    return all(isinstance(value, str) and is_text(value) for value in values) and len(set(values)) == len(values)


def is_text(value: str) -> bool:
    """Whether a word has no half of a character, as names of files may: such a word cannot be printed."""
    return not any("\ud800" <= character <= "\udfff" for character in value)
