"""Tokens: turn texts into token ids, by the words of the training texts or by a Hugging Face tokenizer."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from ddm.errors import InputError

PADDING, UNKNOWN = 0, 1
"""Ids of the padding, and of words that are not in the vocabulary."""

MAX_WORDS = 20_000
"""Maximum size of a vocabulary of words."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

_CHARACTERS = 64
"""Characters of a text that are read for each token that it may have."""


class Tokenizer(Protocol):
    """Turns texts into token ids.

    size: number of token ids; they are 0 … size − 1
    padding: the id of the padding
    """

    @property
    def size(self) -> int:
        """Number of token ids."""

    @property
    def padding(self) -> int:
        """The id of the padding."""

    def ids(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The ids of each text, at most ``length`` and at least one."""


class Words:
    """Lower-case words. A word that occurs in a single training text counts as unknown, because nothing repeats it."""

    padding = PADDING

    def __init__(self, texts: Iterable[str], length: int) -> None:
        counts = Counter(word for text in texts for word in set(_words(text, length)))
        common = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
        self.numbers = {word: number for number, word in enumerate(common[: MAX_WORDS - 2], UNKNOWN + 1)}

    @property
    def size(self) -> int:
        """Number of token ids."""
        return len(self.numbers) + 2

    def ids(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The number of each word."""
        return [[self.numbers.get(word, UNKNOWN) for word in _words(text, length)] or [UNKNOWN] for text in texts]


def _words(text: str, length: int) -> list[str]:
    """The first words of a text."""
    return _WORD.findall(text[: _CHARACTERS * length].lower())[:length]


class Pretrained:
    """A tokenizer of Hugging Face's ``transformers``."""

    def __init__(self, name: str) -> None:
        self.name, self.tokenizer = name, _load(name)
        padding = self.tokenizer.pad_token_id
        self.padding = PADDING if padding is None else int(padding)

    @property
    def size(self) -> int:
        """Number of token ids."""
        return max(len(self.tokenizer), self.padding + 1)

    def ids(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The ids of each text, with the tokenizer's special tokens."""
        cut = [text[: _CHARACTERS * length] for text in texts]
        found: list[list[int]] = self.tokenizer(cut, truncation=True, max_length=length)["input_ids"]
        return [ids or [self.padding] for ids in found]


def _load(name: str) -> Any:
    """The tokenizer of this name, from this machine if it is there. Code that comes with it is not run."""
    try:
        import transformers
        from huggingface_hub import constants
    except ImportError:
        raise InputError(
            f"the tokenizer '{name}' needs the Hugging Face libraries: pip install 'distilled-datamodel[hub]', or "
            "leave out --tokenizer."
        ) from None
    load = partial(transformers.AutoTokenizer.from_pretrained, name, trust_remote_code=False)
    with contextlib.suppress(Exception):  # it is not on this machine
        return load(local_files_only=True)
    try:
        return load(local_files_only=os.path.isdir(name) or bool(constants.HF_HUB_OFFLINE))
    except Exception as error:  # a missing file, a wrong name and a broken connection raise different types
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"the tokenizer '{name}' cannot be loaded ({why}): give a local folder, or check the name and the "
            "connection."
        ) from None


def padded(ids: Sequence[Sequence[int]], width: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, both ``(n, width)`` int64; the mask is 1 at tokens."""
    table = np.full((len(ids), width), padding, dtype=np.int64)
    mask = np.zeros((len(ids), width), dtype=np.int64)
    for row, each in enumerate(ids):
        table[row, : len(each)], mask[row, : len(each)] = each, 1
    return table, mask
