"""Image classification datasets of the Hugging Face Hub, or of a local folder that ``datasets`` can read.

Needs the ``hub`` extra. Images are in the first column of type image, else in the column ``image`` or ``img``.
Labels are in the column ``label``, ``labels`` or ``fine_label``. Splits are ``train``, ``validation`` or ``valid``,
and ``test``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ddm.compute.files import is_outside
from ddm.data.images import Images, survey
from ddm.data.labels import encode_labels
from ddm.data.readers.locate import one_line
from ddm.data.readers.published import Published
from ddm.errors import InputError

SPLITS = {"train": ("train",), "validation": ("validation", "valid"), "test": ("test",)}
IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "labels", "fine_label")


def read(path: str, size: int | None) -> Published:
    """The dataset with this name on the Hub, or in the folder with this path."""
    what = f"hf:{path}"
    tables = _tables(path, what)
    features = tables["train"].features
    image, label = _image_column(features, what), _named_column(features, LABEL_NAMES, "label", what)
    names = getattr(features[label], "names", None)
    classes, labels = encode_labels({split: table[label][:] for split, table in tables.items()}, names, what)
    sources = {split: _Column.of(table, image, what) for split, table in tables.items()}
    splits = {split: Images(column, labels[split], classes, f"{what} {split}") for split, column in sources.items()}
    return Published(
        splits["train"],
        splits.get("validation"),
        splits.get("test"),
        survey=partial(survey, size=size),
    )


def _tables(name: str, what: str) -> dict[str, Any]:
    """The dataset's splits, named train, validation and test."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{what} needs the Hugging Face libraries: pip install 'distilled-datamodel[hub]'.") from None
    try:
        found = datasets.load_dataset(name)
    except Exception as error:  # errors of network, cache, name and file have different types
        raise InputError(f"{what} cannot be loaded ({one_line(error)}): check the name and the connection.") from None
    if "train" not in found:
        raise InputError(f"{what} has no split 'train', only {', '.join(found)}: give a dataset that has one.")
    tables = {split: [found[name] for name in names if name in found] for split, names in SPLITS.items()}
    return {split: candidates[0] for split, candidates in tables.items() if candidates}


def _image_column(features: Mapping[str, Any], what: str) -> str:
    import datasets

    typed = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    return typed[0] if typed else _named_column(features, IMAGE_NAMES, "image", what)


def _named_column(features: Mapping[str, Any], names: Sequence[str], use: str, what: str) -> str:
    for name in names:
        if name in features:
            return name
    raise InputError(f"{what} has no {use} column named {' or '.join(names)}, only {', '.join(features)}: rename one.")


@dataclass(frozen=True)
class _Column:
    """The encoded images of a split, by row."""

    table: Any
    name: str
    what: str

    @classmethod
    def of(cls, table: Any, name: str, what: str) -> _Column:
        import datasets

        try:
            return cls(table.select_columns([name]).cast_column(name, datasets.Image(decode=False)), name, what)
        except Exception as error:  # pyarrow and datasets raise their own types
            raise InputError(f"{what} has a column '{name}' that does not hold images: {one_line(error)}.") from None

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int, /) -> Path | BinaryIO:
        value = self.table[row][self.name]
        if value is not None and value["bytes"] is not None:
            return io.BytesIO(value["bytes"])
        if value is None or value["path"] is None or not self._belongs_to_dataset(Path(value["path"])):
            raise InputError(f"{self.what} has no image in row {row} of '{self.name}': remove the row.")
        return Path(value["path"])

    def _belongs_to_dataset(self, path: Path) -> bool:
        """True if a path lies in the dataset's folder or a cache, so that a table cannot make ddm read other files."""
        from datasets import config
        from huggingface_hub import constants

        caches = (config.HF_CACHE_HOME, config.HF_DATASETS_CACHE, constants.HF_HUB_CACHE)
        folders = [Path(folder).resolve() for folder in (self.what.removeprefix("hf:"), *caches)]
        return not all(is_outside(path, folder) for folder in folders)
