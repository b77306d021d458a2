"""Numbers as text: with a unit, and with the sign in words or as a true minus."""

from __future__ import annotations

import math


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as ``93.1 %``."""
    if not math.isfinite(fraction):
        return "–"
    return f"{100 * fraction:.{digits}f} %"


def points(change: float) -> str:
    """A change of a fraction as ``+1.4 points``."""
    return f"{_signed(100 * change, 1)} points"


def signed(change: float, digits: int = 4) -> str:
    """A change as ``+0.0312``."""
    return _signed(change, digits)


def between(low: float, high: float, digits: int = 4) -> str:
    """The ends of an interval of a change as ``−0.0102 to +0.0312``."""
    return f"{_signed(low, digits)} to {_signed(high, digits)}"


def plural(count: int, one: str) -> str:
    """``1 sample``, ``2,000 samples``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def raised(what: str, change: float) -> str:
    """A change of a fraction in words: ``raises accuracy by 1.4 points``."""
    return _worded(what, change, f"{abs(100 * change):.1f} points", 0.0005)


def raised_value(what: str, change: float) -> str:
    """A change of a value without a unit in words: ``lowers the loss by 0.0312``."""
    return _worded(what, change, f"{abs(change):.4f}", 0.00005)


def _worded(what: str, change: float, size: str, least: float) -> str:
    if not math.isfinite(change):
        return f"has an unknown effect on {what}"
    if abs(change) < least:
        return f"leaves {what} as it is"
    return f"{'raises' if change > 0 else 'lowers'} {what} by {size}"


def _signed(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return text
    return f"{'+' if value > 0 else '−'}{text}"
