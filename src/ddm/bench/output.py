"""The output files of a benchmark: NAME.json for programs, NAME.md for people, and NAME.png if it has a figure."""

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
from ddm.compute.files import atomic_write, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

_PACKAGES = ("torch", "numpy", "scikit-learn", "dattri", "captum", "kronfluence", "traker")


@dataclass(frozen=True)
class Table:
    """A further table of a benchmark.

    name:    key of its rows in the JSON file
    title:   heading
    rows:    its rows
    columns: row keys that the Markdown table shows, with their headings; without any, only the JSON file has the rows
    """

    name: str
    title: str
    rows: Sequence[Row]
    columns: Mapping[str, str] = field(default_factory=dict)

    def markdown(self) -> list[str]:
        """Heading and table as Markdown lines."""
        return ["", f"## {self.title}", "", *_lines(self.rows, self.columns)] if self.columns else []


@dataclass(frozen=True)
class Report:
    """The results of a benchmark.

    name:      name of the benchmark
    title:     caption of the table, one line
    rows:      one row per method, or per variant compared
    columns:   row keys that the Markdown table shows, with their headings
    notes:     explanations of the columns
    reference: facts shared by all rows, such as ceilings and the duration of a training
    paper:     the paper's own numbers, by the row's method
    figure:    the plot, if there is one
    tables:    further tables
    """

    name: str
    title: str
    rows: Sequence[Row]
    columns: Mapping[str, str]
    notes: Sequence[str] = ()
    reference: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    figure: Figure | None = None
    tables: Sequence[Table] = ()

    def write(self, out: Path, setup: Setup | None, command: str, seconds: float) -> dict[str, Any]:
        """Write every file atomically and return the content of the JSON file.

        setup: the setup that all rows share; None if each has its own
        """
        described = setup.to_dict() if setup is not None else {}
        values: dict[str, Any] = {
            "bench": self.name,
            "title": self.title,
            "command": command,
            "setup": {name: value for name, value in described.items() if name != "root"},
            "versions": package_versions(),
            "seconds": round(seconds, 1),
            "rows": [nan_to_none(row) for row in self.rows],
            **({"tables": self._all_rows()} if self.tables else {}),
            "reference": nan_to_none(self.reference),
            "paper": dict(self.paper),
            "notes": list(self.notes),
        }
        if self.figure is not None:
            plots.save(self.figure, out / f"{self.name}.png")
        with atomic_write(out / f"{self.name}.md") as temporary:
            temporary.write_text(self.markdown(values), encoding="utf-8")
        write_json(out / f"{self.name}.json", values)
        return values

    def _all_rows(self) -> dict[str, list[Row]]:
        return {table.name: [nan_to_none(row) for row in table.rows] for table in self.tables}

    def markdown(self, values: Mapping[str, Any]) -> str:
        """The Markdown page."""
        lines = [f"# {self.title}", "", *self.table()]
        for table in self.tables:
            lines += table.markdown()
        if self.figure is not None:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        if self.reference:
            shared = "; ".join(f"{name} {format_cell(value)}" for name, value in nan_to_none(self.reference).items())
            lines += ["", f"Reference: {shared}."]
        lines += ["", *(f"- {note}" for note in self.notes)]
        listed = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
        lines += ["", "```", values["command"], "```", f"{values['seconds']} s in total; {listed}.", ""]
        return "\n".join(lines)

    def table(self) -> list[str]:
        """The rows as a Markdown table; the last column holds the paper's numbers, if there are any."""
        if not self.paper:
            return _lines(self.rows, self.columns)
        rows = [{**row, "the paper": self.paper.get(row["method"])} for row in self.rows]
        return _lines(rows, {**self.columns, "the paper": "the paper"})


def _lines(rows: Sequence[Row], columns: Mapping[str, str]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        shown = nan_to_none(row)
        lines.append("| " + " | ".join(format_cell(shown.get(key)) for key in columns) + " |")
    return lines


def nan_to_none(row: Mapping[str, Any]) -> Row:
    """Replace NaN and infinite values by None, because JSON cannot represent them."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def format_cell(value: Any) -> str:
    """Format a value for a table; floats get three significant digits."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value).replace("|", "\\|")
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that affect the results."""
    from ddm import __version__

    installed = {"ddm": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
