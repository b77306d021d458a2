"""Make groups of a column of the data: of dates, of numbers, or of the contents of the samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils import _pytree as pytree

from ddm.data.inputs import unwrap
from ddm.data.samples import Samples
from ddm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d %H:00"}
"""How each period is written. Names sort by time."""

_PERIODS = (*_FORMATS, "quarter", "week", "weekday")

_MOST_DATES = 200
"""More different dates than this are grouped by month."""

_BATCH = 256
"""Samples that are read at once."""

MISSING = "missing"
"""The group of samples whose value is missing."""


def by_date(values: Any, period: str = "month") -> np.ndarray:
    """The period of each date, as groups ``(n,)``: 2024-03 for a month.

    values: dates ``(n,)``: numpy's or pandas', Python's, or text such as 2024-03-31
    period: year, quarter, month, week, weekday, day or hour
    """
    if period not in _PERIODS:
        raise InputError(f"there is no period '{period}': use one of {', '.join(_PERIODS)}.")
    dates = _parsed(values).to_series().reset_index(drop=True)
    if period == "quarter":
        names = dates.dt.year.astype("Int64").astype(str) + "-Q" + dates.dt.quarter.astype("Int64").astype(str)
    elif period == "week":
        week = dates.dt.isocalendar()
        names = week["year"].astype(str) + "-W" + week["week"].astype(str).str.zfill(2)
    else:
        names = dates.dt.day_name() if period == "weekday" else dates.dt.strftime(_FORMATS[period])
    return np.asarray(names.where(dates.notna(), MISSING).astype(str), dtype=str)


def _parsed(values: Any) -> pd.DatetimeIndex:
    """Dates of any form, in their own time zone."""
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # text in no known format, which is refused below
            dates = pd.DatetimeIndex(pd.to_datetime(np.asarray(values)))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"these values are not dates ({' '.join(str(error).split())}): give dates.") from None
    return dates.tz_localize(None)


def by_quantile(values: Any, count: int = 10) -> np.ndarray:
    """The range of each number, as groups ``(n,)`` of about equal size: ``12 to 40``. Equal numbers stay together.

    values: numbers ``(n,)``; missing ones are a group of their own
    count:  number of groups; fewer if many values are equal
    """
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError("these values are not numbers: give a column of numbers.") from None
    if numbers.ndim != 1 or count < 2:
        raise InputError("quantiles need one number for each sample, and at least 2 groups.")
    known = np.isfinite(numbers)
    groups = np.full(len(numbers), MISSING, dtype=object)
    if known.any():
        edges = np.unique(np.quantile(numbers[known], np.linspace(0, 1, count + 1)[1:-1]))
        parts = np.searchsorted(edges, numbers[known], side="left")
        # Padded numbers, so that the groups sort as their values do
        named = {part: _range(order, numbers[known][parts == part]) for order, part in enumerate(np.unique(parts))}
        groups[known] = [named[part] for part in parts]
    return groups.astype(str)


def _range(order: int, values: np.ndarray) -> str:
    return f"{order + 1:02d}: {values.min():.6g} to {values.max():.6g}"


def by_content(samples: Samples) -> dict[str, np.ndarray]:
    """Samples with exactly the same input, as groups: the positions of each set of copies, by the id of its first.

    Samples without a copy are in no group.
    """
    found: dict[bytes, list[int]] = {}
    for start in range(0, len(samples), _BATCH):
        x, _ = samples.batch(slice(start, start + _BATCH))
        columns = [leaf.contiguous().numpy() for leaf in pytree.tree_leaves(unwrap(x))]
        for row in range(len(x)):
            digest = hashlib.sha256(b"".join(column[row].tobytes() for column in columns)).digest()
            found.setdefault(digest, []).append(start + row)
    return {f"copies of {samples.id(rows[0])}": np.array(rows) for rows in found.values() if len(rows) > 1}


def named_dates(groups: Sequence[Any] | np.ndarray) -> Sequence[Any] | np.ndarray:
    """Groups as they are, but dates as text, by month if there are very many different ones."""
    if not _are_dates(groups):
        return groups
    dates = _parsed(groups).to_numpy()
    count = len(np.unique(dates))
    if count <= _MOST_DATES:
        return np.datetime_as_string(dates.astype("datetime64[s]"), unit="auto")
    warnings.warn(
        f"there are {count:,} different dates, so ddm groups them by month: choose a period by "
        "ddm.groups.by_date(dates, 'year').",
        stacklevel=5,
    )
    return by_date(groups, "month")


def _are_dates(groups: Any) -> bool:
    """True for dates of numpy, pandas or Python."""
    if str(getattr(groups, "dtype", "")).startswith("datetime64"):
        return True
    first = next(iter(groups), None) if isinstance(groups, Iterable) else None
    return isinstance(first, date)
