"""What a benchmark writes: NAME.json for machines, NAME.md for people, NAME.png where it is a figure."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddm import plots
from ddm.bench.setup import Setup
from ddm.files import replacing, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

_PACKAGES = ("torch", "numpy", "scikit-learn", "dattri", "captum", "kronfluence", "traker")


@dataclass(frozen=True)
class Report:
    """What a benchmark found.

    name:      of the benchmark
    title:     one line for people
    rows:      one for each method, or each thing compared
    columns:   the keys of the rows that the table for people shows, with their headings
    notes:     how to read it, a sentence each
    reference: what all rows share: what another retraining scores, the ceiling, the time of a training
    paper:     the paper's own figures, by row
    figure:    the picture, where it is one
    """

    name: str
    title: str
    rows: Sequence[Row]
    columns: Mapping[str, str]
    notes: Sequence[str] = ()
    reference: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    figure: Figure | None = None

    def write(self, out: Path, setup: Setup, command: str, seconds: float) -> dict[str, Any]:
        """Write every file, each whole or not at all, and return what the JSON holds."""
        values: dict[str, Any] = {
            "bench": self.name,
            "title": self.title,
            "command": command,
            "setup": {name: value for name, value in setup.to_dict().items() if name != "root"},
            "versions": versions(),
            "seconds": round(seconds, 1),
            "rows": [finite(row) for row in self.rows],
            "reference": finite(self.reference),
            "paper": dict(self.paper),
            "notes": list(self.notes),
        }
        if self.figure is not None:
            plots.save(self.figure, out / f"{self.name}.png")
        with replacing(out / f"{self.name}.md") as temporary:
            temporary.write_text(self.markdown(values), encoding="utf-8")
        write_json(out / f"{self.name}.json", values)
        return values

    def markdown(self, values: Mapping[str, Any]) -> str:
        """The page for people."""
        lines = [f"# {self.title}", "", *self.table()]
        if self.figure is not None:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        if self.reference:
            shared = "; ".join(f"{name} {cell(value)}" for name, value in finite(self.reference).items())
            lines += ["", f"Reference: {shared}."]
        lines += ["", *(f"- {note}" for note in self.notes)]
        listed = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
        lines += ["", "```", values["command"], "```", f"{values['seconds']} s on this run; {listed}.", ""]
        return "\n".join(lines)

    def table(self) -> list[str]:
        """The rows as a Markdown table, with the paper's figures in the last column where it has them."""
        headings = list(self.columns.values()) + (["the paper"] if self.paper else [])
        lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
        for row in self.rows:
            cells = [cell(finite(row).get(key)) for key in self.columns]
            if self.paper:
                cells.append(cell(self.paper.get(row["method"])))
            lines.append("| " + " | ".join(cells) + " |")
        return lines


def finite(row: Mapping[str, Any]) -> Row:
    """A row with None in place of what is not a number, which JSON has no word for."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def cell(value: Any) -> str:
    """A value for a table: three digits where it is a number."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value).replace("|", "\\|")
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def versions() -> dict[str, str]:
    """Versions of what made the figures, as far as it is installed."""
    from ddm import __version__

    found = {"ddm": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
