"""Tables: a CSV or Parquet file, of which one column is the label.

The network reads one column of text, or all columns that nothing else uses. What the training rows teach, such as the
mean of a column or the words of a vocabulary, is learnt after the splits are drawn. Parquet needs pyarrow.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddm.compute import progress
from ddm.compute.files import file_size
from ddm.compute.memory import check_memory
from ddm.data.columns import Columns
from ddm.data.features import Features, is_number, typed_row, usable
from ddm.data.inputs import Inputs
from ddm.data.readers.locate import one_line
from ddm.data.readers.published import Published
from ddm.data.samples import PER_SAMPLE, Samples
from ddm.data.table_labels import Labelled, read_labels
from ddm.data.tokens import Pretrained, Tokenizer, Words, padded
from ddm.data.views import TableView, TextView
from ddm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_COLUMNS = 10_000
"""Maximum columns of a table."""

_HEADER = 2**22
"""Maximum bytes of the first line of a CSV file."""

_IN_MEMORY = 12
"""Bytes of memory that reading takes for each byte of a CSV file: short words take the most."""

_SHOWN = 10
"""Maximum columns that a message lists."""


def read_csv(path: str, columns: Columns) -> Published:
    """The table in a CSV file, or ``train.csv`` and ``test.csv`` in a folder."""
    return _read(path, columns, "csv", _csv)


def read_parquet(path: str, columns: Columns) -> Published:
    """The table in a Parquet file, or ``train.parquet`` and ``test.parquet`` in a folder."""
    return _read(path, columns, "parquet", _parquet)


def _read(path: str, columns: Columns, kind: str, read: Any) -> Published:
    place = Path(path).expanduser()
    if place.is_dir():
        files = {split: place / f"{split}.{kind}" for split in ("train", "validation", "test")}
        files = {split: file for split, file in files.items() if split == "train" or file.exists()}
    else:
        files = {"train": place}
    frames = {}
    for split, file in files.items():
        if not file.exists():
            raise InputError(f"there is no file '{file}': give the path of a {kind} file.")
        if file_size(file) == 0:
            raise InputError(f"'{file}' is empty: give a table with a line of column names and rows.")
        frames[split] = read(file)
    return _published(frames, columns, path)


def _csv(file: Path) -> pd.DataFrame:
    import pandas as pd

    separator = _separator(file)
    check_memory(_IN_MEMORY * file_size(file), f"'{file}'", "keep fewer rows or columns")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more values than there are names
            options: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig", "low_memory": False}
            frame: pd.DataFrame = pd.read_csv(file, index_col=False, skipinitialspace=True, **options)
            return frame
    except UnicodeDecodeError:
        raise InputError(f"'{file}' is not text in UTF-8: save it as a CSV file in UTF-8.") from None
    except Exception as error:  # the parser raises many types
        raise InputError(f"'{file}' is not a CSV file that can be read ({one_line(error)[:200]}): repair it.") from None


def _separator(file: Path) -> str:
    """The separator of a CSV file: a comma, a semicolon or a tab. Refuses what no table begins with."""
    with file.open("rb") as lines:
        header = lines.readline(_HEADER + 1)
        if len(header) > _HEADER:
            raise InputError(f"'{file}' has a first line of more than {_HEADER // 2**20} MiB: give column names there.")
        if b"\0" in header or any(b"\0" in part for part in iter(lambda: lines.read(2**20), b"")):
            raise InputError(f"'{file}' holds bytes that are 0, which no CSV file has: save it as text.")
    separator = max((b",", b";", b"\t"), key=header.count)
    _check_width(header.count(separator) + 1, file)
    return separator.decode()


def _check_width(count: int, file: Path) -> None:
    if count > MAX_COLUMNS:
        raise InputError(f"'{file}' has {count:,} columns: keep {MAX_COLUMNS:,} at most.")


def _parquet(file: Path) -> pd.DataFrame:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"'{file}' needs pyarrow: pip install 'distilled-datamodel[hub]', or give a CSV file."
        ) from None
    try:
        with parquet.ParquetFile(file) as opened:
            _check_width(opened.metadata.num_columns, file)
            groups = (opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups))
            check_memory(2 * sum(group.total_byte_size for group in groups), f"'{file}'", "keep fewer rows or columns")
            frame: pd.DataFrame = opened.read().to_pandas(ignore_metadata=True)
            return frame
    except InputError:
        raise
    except Exception as error:  # pyarrow raises its own types
        raise InputError(f"'{file}' is not a Parquet file that can be read ({one_line(error)[:200]}).") from None


def _published(frames: Mapping[str, pd.DataFrame], columns: Columns, path: str) -> Published:
    """The splits of some tables with the same columns."""
    import pandas as pd

    train = frames["train"]
    for split, frame in frames.items():
        _check(frame, columns, f"{path} {split}" if len(frames) > 1 else path)
        if list(frame.columns) != list(train.columns):
            raise InputError(f"{path} has other columns in {split} than in train: give all splits the same columns.")
    whole = pd.concat(list(frames.values()), ignore_index=True) if len(frames) > 1 else train
    labelled = read_labels(whole, columns, path)
    table = _Table(columns, whole, labelled, _inputs(whole, columns, path), path)
    starts = np.cumsum([0, *map(len, frames.values())])
    splits = {
        split: _Split(table, np.arange(start, stop))
        for split, start, stop in zip(frames, starts[:-1], starts[1:], strict=True)
    }
    return Published(
        splits["train"],
        splits.get("validation"),
        splits.get("test"),
        survey=partial(_survey, table),
        task=labelled.task,
        normalised=True,
    )


def _check(frame: pd.DataFrame, columns: Columns, what: str) -> None:
    names = [" ".join(str(name).split()) for name in frame.columns]
    for name in columns.named:
        if name not in names:
            shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
            raise InputError(f"{what} has no column '{name}', only {shown}: name one of these.")
    if len(set(names)) < len(names):
        raise InputError(f"{what} has two columns of the same name: rename one.")
    if len(frame) == 0:
        raise InputError(f"{what} has column names but no rows: add rows.")
    frame.columns = names
    if columns.text is not None and is_number(frame[columns.text]):
        raise InputError(f"the column '{columns.text}' of {what} holds numbers, not text: name another, or no --text.")


def _inputs(frame: pd.DataFrame, columns: Columns, what: str) -> pd.DataFrame:
    """The columns that the network reads."""
    if columns.text is None:
        unused = {*columns.label, columns.group_by, columns.id, *columns.drop}
        return usable(frame[[name for name in frame.columns if name not in unused]], what)
    texts = frame[columns.text]
    if missing := int(texts.isna().sum()):
        progress.note(f"{what}: {missing:,} texts are missing and count as empty.")
    return frame[[columns.text]]


@dataclass(frozen=True, eq=False)
class _Table:
    """A table whose columns are known, before the rows of the training are.

    inputs: the columns that the network reads
    """

    columns: Columns
    frame: pd.DataFrame
    labelled: Labelled
    inputs: pd.DataFrame
    what: str

    def values(self, column: str | None) -> np.ndarray | None:
        """A column as words ``(n,)``; missing ones are called so."""
        if column is None:
            return None
        words = self.frame[column].astype(object).where(self.frame[column].notna(), "missing")
        return np.array([_word(word) for word in words])

    def texts(self, rows: np.ndarray) -> list[str]:
        """The texts of some rows."""
        column = self.inputs[self.columns.text].iloc[rows]
        return [str(text) for text in column.astype(object).where(column.notna(), "")]


def _word(value: Any) -> str:
    """A value as a word on one line; whole numbers that a missing value turned into floats lose their ``.0``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else " ".join(str(value).split())


@dataclass(frozen=True, eq=False)
class _Split:
    """Rows of a table that are not encoded yet."""

    table: _Table
    positions: np.ndarray

    @property
    def labels(self) -> Tensor:
        """``(n, ...)``."""
        return self.table.labelled.labels[torch.as_tensor(self.positions)]

    def __getitem__(self, rows: np.ndarray, /) -> Samples:
        raise RuntimeError("the survey encodes a table before its rows are read")

    def bytes_per_sample(self, size: int | None, /) -> int:
        """Refused: only the survey knows."""
        raise RuntimeError("the survey encodes a table before its rows are read")


def _survey(table: _Table, parts: Sequence[tuple[_Split, np.ndarray]]) -> Sequence[_Encoded]:
    """The splits, ready to be encoded as the training rows, which come first, say."""
    every = [split.positions[rows] for split, rows in parts]
    text = table.columns.text is not None
    code = _tokens(table, every) if text else Features.learn(table.inputs.iloc[every[0]])
    groups, ids = table.values(table.columns.group_by), table.values(table.columns.id)
    options = _options(table.labelled, every[0]) | (code.options if isinstance(code, _Tokens) else {})
    return [_Encoded(table, split, code, options, groups, ids) for split, _ in parts]


def _options(labelled: Labelled, train: np.ndarray) -> dict[str, Any]:
    """Options of a network: for a regression, mean and standard deviation of the training labels."""
    if labelled.task != "regression":
        return {}
    values = labelled.labels[torch.as_tensor(train)].double()
    spread = float(values.std(correction=0))
    return {"shift": float(values.mean()), "scale": spread or 1.0}


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The tokenizer of a table's texts, and the number of tokens to which all are padded."""

    tokenizer: Tokenizer
    length: int
    width: int

    @property
    def options(self) -> dict[str, Any]:
        """Options of a network that reads these tokens."""
        return {"vocabulary": self.tokenizer.size}

    def encode(self, texts: Sequence[str]) -> Inputs:
        """Token ids and their mask."""
        rows = [ids[: self.width] for ids in self.tokenizer.ids(texts, self.length)]
        ids, mask = padded(rows, self.width, self.tokenizer.padding)
        return Inputs({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)})


def _tokens(table: _Table, every: Sequence[np.ndarray]) -> _Tokens:
    """The tokenizer, with the words of the training rows, which come first."""
    columns = table.columns
    tokenizer: Tokenizer
    if columns.tokenizer is None:
        tokenizer = Words(table.texts(every[0]), columns.length)
        if tokenizer.size < 4:
            raise InputError(f"no word of '{columns.text}' occurs in two training texts: give texts, or a --tokenizer.")
    else:
        tokenizer = Pretrained(columns.tokenizer)
    ids = itertools.chain(*(tokenizer.ids(table.texts(rows), columns.length) for rows in every))
    return _Tokens(tokenizer, columns.length, max(map(len, ids)))


@dataclass(frozen=True, eq=False)
class _Encoded:
    """Rows of a table as the network reads them.

    options:     options that a network for them needs
    groups, ids: ``(rows of the table,)``
    """

    table: _Table
    split: _Split
    code: Features | _Tokens
    options: dict[str, Any]
    groups: np.ndarray | None
    ids: np.ndarray | None

    @property
    def labels(self) -> Tensor:
        """``(n, ...)``."""
        return self.split.labels

    def bytes_per_sample(self, size: int | None, /) -> int:
        """Bytes of memory for each row: a number for each feature, or an id and a mask for each token."""
        width = self.code.width if isinstance(self.code, _Tokens) else len(self.code.mean)
        return PER_SAMPLE + 16 * width  # features are encoded in float64 first

    def __getitem__(self, rows: np.ndarray, /) -> Samples:
        positions = self.split.positions[rows]
        return replace(
            self._table_rows(positions, self.code)
            if isinstance(self.code, Features)
            else self._text_rows(positions, self.code),
            origin=torch.as_tensor(rows),
            ids=None if self.ids is None else tuple(str(name) for name in self.ids[positions]),
            groups=None if self.groups is None else self.groups[positions],
            options=self.options,
        )

    def encode(self, typed: str | Mapping[str, Any]) -> Samples:
        """One sample of a text, or of the values of a row by column. Its label means nothing."""
        first = self.split.positions[:1]
        if isinstance(self.code, _Tokens):
            view = TextView(np.array([str(typed)], dtype=object))
            return replace(self._text_rows(first, self.code), raw=self.code.encode([str(typed)]), view=view)
        if not isinstance(typed, Mapping):
            raise InputError("give the values of a row by the names of its columns.")
        frame = typed_row(self.table.inputs, typed)
        raw = torch.from_numpy(self.code.encode(frame))
        return replace(self._table_rows(first, self.code), raw=raw, view=TableView(frame))

    def _table_rows(self, positions: np.ndarray, features: Features) -> Samples:
        frame = self.table.inputs.iloc[positions]
        samples = Samples.from_arrays(features.encode(frame), **self._labelled(positions))
        moments = (torch.as_tensor(values, dtype=torch.float32) for values in (features.mean, features.std))
        return replace(samples.with_normalisation(*moments), view=TableView(self._shown(frame)))

    def _shown(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns that people see of some rows: the group, and the columns that the network reads."""
        group = self.table.columns.group_by
        return frame if group is None else self.table.frame.loc[frame.index, [group, *frame.columns]]

    def _text_rows(self, positions: np.ndarray, tokens: _Tokens) -> Samples:
        texts = self.table.texts(positions)
        view = TextView(np.array(texts, dtype=object))
        return Samples.from_batch(tokens.encode(texts), **self._labelled(positions), view=view)

    def _labelled(self, positions: np.ndarray) -> dict[str, Any]:
        """Labels of some rows, their classes and their task."""
        labelled = self.table.labelled
        labels = labelled.labels[torch.as_tensor(positions)]
        return {"labels": labels, "classes": labelled.classes, "task": labelled.task, "what": self.table.what}
