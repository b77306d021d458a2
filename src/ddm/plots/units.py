"""Units: fractions such as probabilities and accuracies are shown in percent, and their changes in points.

A change from 50 % to 53 % is +3.0 points. Results and files hold fractions.
"""

from __future__ import annotations


def scale(fraction: bool) -> float:
    """The factor from a change to the number that is shown."""
    return 100.0 if fraction else 1.0


def value_text(value: float, fraction: bool) -> str:
    """A value, in percent if it is a fraction."""
    return f"{value:.1%}" if fraction else _short(value)


def change_number(change: float, fraction: bool, digits: int = 1) -> str:
    """A change with its sign, in points if it is the change of a fraction, where the unit is said elsewhere."""
    return f"{scale(fraction) * change:+.{digits}f}" if fraction else _short(change, "+")


def _short(value: float, sign: str = "") -> str:
    """A number with four digits, or with all of those before the point."""
    return f"{value:{sign},.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:{sign}.4g}"


def change_text(change: float, fraction: bool, digits: int = 1) -> str:
    """A change with its sign and unit: ``+3.0 points`` or ``+0.0312``."""
    return change_number(change, fraction, digits) + (" points" if fraction else "")


def interval_text(low: float, high: float, fraction: bool) -> str:
    """The ends of an interval of a change, where the unit is said elsewhere: ``-1.2 to +3.0``."""
    return " to ".join(change_number(end, True) if fraction else f"{end:+.3g}" for end in (low, high))


def minus(text: str) -> str:
    """Numbers as text, with a true minus."""
    return text.replace("-", "−")


def size_text(count: int) -> str:
    """A number of bytes, in KiB or MiB."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count / 2**10:,.0f} KiB"
