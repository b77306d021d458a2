"""Answers as files: JSON with all fields, or the data frame as a table for other tools."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddm.compute.files import atomic_write, write_json
from ddm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class Answer(Protocol):
    """A result with a data frame."""

    def to_dataframe(self) -> pd.DataFrame:
        """The result as a table."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""


def save(answer: Answer, path: Path | str) -> None:
    """Write an answer as a table if the path ends in .csv or .parquet, else as JSON."""
    path = Path(path)
    if path.suffix == ".csv":
        with atomic_write(path) as temporary:
            answer.to_dataframe().to_csv(temporary, index=False)
    elif path.suffix == ".parquet":
        _check_parquet()
        with atomic_write(path) as temporary:
            answer.to_dataframe().to_parquet(temporary, index=False)
    else:
        write_json(path, answer.to_dict())


def _check_parquet() -> None:
    if find_spec("pyarrow") is None:
        raise InputError("a parquet file needs pyarrow: pip install pyarrow, or end the path in .csv.")
