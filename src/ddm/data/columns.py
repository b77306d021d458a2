"""Columns: what each column of a table is for, as a user names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ddm.errors import InputError

TASKS = ("classification", "multilabel", "regression")
"""Tasks of a table."""

MAX_LENGTH = 2**16
"""Maximum tokens of a text."""


@dataclass(frozen=True)
class Columns:
    """The use of each column of a table.

    label:     the column to predict; several columns of 0 and 1 for a multi-label task
    task:      classification, multilabel or regression; None: multilabel for several label columns, else classification
    text:      the column with the text that the network reads; None: it reads all other columns
    tokenizer: a Hugging Face tokenizer by its name or local folder; None: the words of the training texts
    length:    maximum tokens of a text; longer texts are cut
    group_by:  the column with each row's group, which the network does not read
    id:        the column with each row's name, which the network does not read; None: rows are named by their number
    drop:      columns that the network must not read, such as those that give the label away
    """

    label: tuple[str, ...]
    task: str | None = None
    text: str | None = None
    tokenizer: str | None = None
    length: int = 128
    group_by: str | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Columns:
        """The columns that a user or a config names, checked."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise InputError(f"a table has no option '{unknown[0]}': use one of {', '.join(known)}.")
        values = {name: value for name, value in given.items() if value is not None}
        for name in ("label", "drop"):
            values[name] = _names(name, values.get(name, ()))
        for name in ("task", "text", "tokenizer", "group_by", "id"):
            if not isinstance(values.get(name, ""), str):
                raise InputError(f"{name.replace('_', '-')} must be a word, not {values[name]!r}.")
        found = cls(**values)
        found._check()
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without those that are not set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: value for name, value in lists.items() if value not in (None, [])}

    def _check(self) -> None:
        if not self.label:
            raise InputError("a table needs the column to predict: name it with --label (label=… in Python).")
        if self.task not in (None, *TASKS):
            raise InputError(f"there is no task '{self.task}' for tables: use one of {', '.join(TASKS)}.")
        if len(self.label) > 1 and self.kind != "multilabel":
            raise InputError(f"{self.kind} has one label: name one column, or leave out --task for several of 0 and 1.")
        if isinstance(self.length, bool) or not isinstance(self.length, int) or not 1 <= self.length <= MAX_LENGTH:
            raise InputError(f"length must be a whole number of tokens from 1 to {MAX_LENGTH:,}, not {self.length!r}.")
        if self.tokenizer is not None and self.text is None:
            raise InputError("a tokenizer needs the column of the text: name it with --text.")
        if self.text is not None and self.text in (*self.label, *self.drop, self.group_by):
            raise InputError(f"'{self.text}' cannot be the text and also a label, a group or a dropped column.")
        if self.group_by in self.label:
            raise InputError(f"'{self.group_by}' is the label: leave out --group-by, and use --partition class.")

    @property
    def kind(self) -> str:
        """The task, also where the user names none."""
        return self.task or ("multilabel" if len(self.label) > 1 else "classification")

    @property
    def named(self) -> tuple[str, ...]:
        """Every column that the user names."""
        single = [name for name in (self.text, self.group_by, self.id) if name is not None]
        return (*self.label, *single, *self.drop)


def _names(what: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{what} must be the name of a column, or a list of names, not {given!r}.")
    return tuple(dict.fromkeys(names))
