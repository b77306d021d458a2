"""Section "Cost and settings": the seconds and settings of the run, and the command of the page."""

from __future__ import annotations

from typing import Any

_PRIVATE = ("root", "device", "groups", "groups_hash")
"""Settings that are left out, because they describe the machine and not the run."""


def cost_section(facts: dict[str, Any], config: dict[str, Any] | None, source: str, command: str) -> dict[str, Any]:
    """Seconds of each stage, the choice of the damping, the settings, and the command that writes the page.

    source: the sentence that says where answers come from
    """
    seconds = facts.get("seconds", {})
    return {
        "seconds": [(stage, f"{value:,.1f}") for stage, value in seconds.items()],
        "total": f"{sum(seconds.values()):,.1f}",
        "damping": _damping(facts.get("damping", {})),
        "settings": _tables(config or {}),
        "source": source,
        "command": command,
    }


def _damping(damping: dict[str, float]) -> dict[str, Any]:
    """The multiple of the training's damping that was used, and each one that was tried.

    Those that were tried have their gain, and the curvature of unseen rows relative to what the solve saw.
    """
    gains = {name.removeprefix("gain at "): gain for name, gain in damping.items() if name.startswith("gain at ")}
    missed = {scale: damping.get(f"missed at {scale}") for scale in gains}
    tried = [
        (scale, f"{gain:.4g}", "–" if missed[scale] is None else f"{missed[scale]:.2f}")
        for scale, gain in gains.items()
    ]
    return {"used": f"{damping['scale']:g}", "tried": tried} if tried else {}


def _tables(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """One table for the top level of a config, and one for each nested part."""
    parts = {name: value for name, value in config.items() if isinstance(value, dict) and value}
    rest = {name: value for name, value in config.items() if name not in _PRIVATE and not isinstance(value, dict)}
    return [(title, [(name, _said(value)) for name, value in part.items()]) for title, part in _titled(rest, parts)]


def _titled(rest: dict[str, Any], parts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("run", rest), *parts.items()]


def _said(value: Any) -> str:
    return "–" if value is None else str(value)
