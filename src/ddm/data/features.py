"""Features: turn the columns of a table into numbers, as the training rows say.

Numbers keep their column, booleans become 0 and 1, dates become days, and words become one column of 0 and 1 for each
frequent value and one for all others. Missing numbers become the median of the training rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.compute import progress
from ddm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_VALUES = 50
"""Maximum different words of a column that get a column of their own."""

MIN_ROWS = 5
"""Minimum training rows in which such a word occurs."""

_DISTINCT = 0.5
"""Share of different values from which on words are names or free text, which no network can learn from."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_LOOKED_AT = 20
"""Values that must look like dates before all are read as dates."""

_NAMED = 4
"""Maximum columns that a sentence names."""


@dataclass(frozen=True)
class Features:
    """How columns become numbers.

    numbers: the columns of numbers, each with the median of the training rows
    words:   the columns of words, each with its frequent values in the training rows
    mean, std: ``(F,)`` of the normalisation; columns of 0 and 1 stay as they are
    """

    numbers: dict[str, float]
    words: dict[str, tuple[str, ...]]
    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def learn(cls, train: pd.DataFrame) -> Features:
        """Learn medians, frequent words and moments from the training rows."""
        numbers = {name: _median(train[name]) for name in train.columns if is_number(train[name])}
        words = {name: _frequent(train[name]) for name in train.columns if name not in numbers}
        plain = cls(numbers, words, np.zeros(0), np.zeros(0))
        values = plain.encode(train)
        mean, std = np.zeros(values.shape[1]), np.ones(values.shape[1])
        scaled = [i for i, name in enumerate(numbers) if not is_flag(train[name])]
        mean[scaled] = values[:, scaled].astype(np.float64).mean(0)
        spread = values[:, scaled].astype(np.float64).std(0)
        std[scaled] = np.where(spread > 1e-6 * np.abs(mean[scaled]), spread, 1.0)
        return cls(numbers, words, mean, std)

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Rows as numbers ``(n, F)`` float32, not normalised yet."""
        columns = [as_numbers(frame[name], name).fillna(median) for name, median in self.numbers.items()]
        blocks = [column.to_numpy(np.float64)[:, None] for column in columns]
        for name, values in self.words.items():
            words = as_words(frame[name])
            known = (words[:, None] == np.array(values, dtype=object)[None]).astype(np.float64)
            blocks.append(np.hstack([known, 1 - known.sum(1, keepdims=True)]))
        with np.errstate(over="ignore"):
            encoded: np.ndarray = np.hstack(blocks).astype(np.float32)
        if not np.isfinite(encoded).all():
            raise InputError("the table has numbers too large for float32: divide such a column, or --drop it.")
        return encoded


def typed_row(like: pd.DataFrame, typed: Mapping[str, Any]) -> pd.DataFrame:
    """One row with the columns and types of a table, of values as a user types them; an empty value is missing."""
    import pandas as pd

    if unknown := [name for name in typed if name not in like.columns]:
        raise InputError(f"the table has no column '{unknown[0]}': leave it out.")
    row = {name: _typed(like[name], typed.get(name)) for name in like.columns}
    return pd.DataFrame({name: pd.Series([value]) for name, value in row.items()})


def _typed(column: pd.Series[Any], value: Any) -> Any:
    """A typed value as the column has them."""
    import pandas as pd
    from pandas.api import types

    text = "" if value is None or value != value else str(value).strip()
    if text in ("", "missing"):
        return pd.NaT if types.is_datetime64_any_dtype(column) else float("nan") if is_number(column) else None
    try:
        if types.is_datetime64_any_dtype(column):
            return pd.Timestamp(text, tz=getattr(column.dt, "tz", None))
        if types.is_timedelta64_dtype(column):
            return pd.Timedelta(text)
        if types.is_bool_dtype(column):
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return float(text) if is_number(column) else text
    except (ValueError, KeyError):
        raise InputError(f"'{text[:40]}' is no value for '{column.name}': give one like those of the column.") from None


def usable(frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """The columns that a network can learn from. Prints a note of those that are left out, and of missing values."""
    frame = frame.assign(**{str(name): _dates(frame[name]) for name in frame.columns if _hold_dates(frame[name])})
    reasons: dict[str, list[str]] = {}
    for name in frame.columns:
        if (why := _useless(frame[name])) is not None:
            reasons.setdefault(why, []).append(str(name))
    for why, names in reasons.items():
        progress.note(f"{what}: {_listed(names)} {'is' if len(names) == 1 else 'are'} left out: {why}.")
    left = frame.drop(columns=[name for names in reasons.values() for name in names])
    if left.shape[1] == 0:
        raise InputError(f"{what} has no column to learn from: give a table with numbers or repeated words.")
    missing = {str(name): float(left[name].isna().mean()) for name in left.columns if left[name].isna().any()}
    if missing:
        shown = sorted(missing, key=lambda name: -missing[name])
        parts = _listed([f"{name} {max(missing[name], 0.001):.1%}" for name in shown])
        progress.note(
            f"{what}: {len(missing)} column{'s have' if len(missing) > 1 else ' has'} missing values ({parts}). "
            "Missing numbers become the median of the training rows, missing words a value of their own."
        )
    return left


def _hold_dates(column: pd.Series[Any]) -> bool:
    """True for words that are all dates such as 2024-12-31, with or without a time."""
    present = column.dropna()
    if is_number(column) or not all(isinstance(word, str) and _DATE.match(word) for word in present[:_LOOKED_AT]):
        return False
    return len(present) > 0 and bool(_dates(present).notna().all())


def _dates(column: pd.Series[Any]) -> pd.Series[Any]:
    """Words as dates; those that are none are missing."""
    import pandas as pd

    return pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)


def _useless(column: pd.Series[Any]) -> str | None:
    """Why a network cannot learn from a column; None if it can."""
    present = column.dropna()
    try:
        different = present.nunique()
    except TypeError:  # lists and tables, as parquet files may hold
        return "no numbers, words or dates"
    if different == 0:
        return "no values"
    if different == 1 and len(present) == len(column):
        return "the same value in every row"
    if is_number(column):
        return "row numbers" if _are_row_numbers(present) else None
    if different > MAX_VALUES and different > _DISTINCT * len(present):
        return "nearly every row has a value of its own, as names and free texts do"
    return None


def _are_row_numbers(column: pd.Series[Any]) -> bool:
    """True for whole numbers without a gap, each once, as the index of a table has them."""
    if column.dtype.kind not in "iu" or len(column) <= MAX_VALUES:
        return False
    return bool(column.is_unique) and int(column.max()) - int(column.min()) == len(column) - 1


def is_number(column: pd.Series[Any]) -> bool:
    """True for numbers, booleans and dates."""
    from pandas.api import types

    return bool(
        (types.is_numeric_dtype(column) and not types.is_complex_dtype(column))
        or types.is_bool_dtype(column)
        or types.is_datetime64_any_dtype(column)
        or types.is_timedelta64_dtype(column)
    )


def is_flag(column: pd.Series[Any]) -> bool:
    """True for booleans, and for numbers that are all 0 or 1."""
    from pandas.api import types

    return bool(types.is_bool_dtype(column) or (is_number(column) and column.dropna().isin([0, 1]).all()))


def as_numbers(column: pd.Series[Any], name: str) -> pd.Series[Any]:
    """A column as float64, dates as days; refused if a number is infinite."""
    from pandas.api import types

    if types.is_datetime64_any_dtype(column):
        import pandas as pd

        column = (column - pd.Timestamp(0, tz=getattr(column.dt, "tz", None))).dt.total_seconds() / 86_400
    elif types.is_timedelta64_dtype(column):
        column = column.dt.total_seconds() / 86_400
    found = column.astype("float64")
    if bool(np.isinf(found).any()):
        raise InputError(f"the column '{name}' has infinite numbers: replace them, or --drop the column.")
    return found


def as_words(column: pd.Series[Any]) -> np.ndarray:
    """A column as an array of words ``(n,)``; missing ones are empty."""
    words = column.astype(object).where(column.notna(), "")
    return np.array([str(word) for word in words], dtype=object)


def _median(column: pd.Series[Any]) -> float:
    found = as_numbers(column, str(column.name)).median()
    return 0.0 if found != found else float(found)


def _frequent(column: pd.Series[Any]) -> tuple[str, ...]:
    """The most frequent words of a column, in alphabetical order."""
    words, counts = np.unique(as_words(column).astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_VALUES]
    return tuple(sorted(str(words[i]) for i in order if counts[i] >= MIN_ROWS))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
