"""Encoded images (PNG, JPEG, …), decoded only when their rows are read.

With a limit of 1,000 on a folder of 100,000 images only 1,000 are opened. ``survey`` first reads their headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from ddm.compute.progress import bar
from ddm.data.readers.locate import one_line
from ddm.data.samples import PER_SAMPLE, Samples
from ddm.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

GREY = ("1", "L", "LA", "I")
# Decoding an image of this size needs half a gigabyte, even if its file has only a hundred bytes.
MOST_PIXELS = 50_000_000
# A subset of the formats that Pillow reads: for some of the others Pillow starts external programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")


class Sources(Protocol):
    """The images of a split, by row, as paths or open files."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Path | BinaryIO: ...


@dataclass(frozen=True)
class Form:
    """The shape that every image gets, and whether images are resized to it."""

    channels: int
    height: int
    width: int
    resize: bool


@dataclass(frozen=True)
class Images:
    """One split of encoded images.

    labels: ``(n,)`` int64, positions in ``classes``
    what:   the split's name in messages
    given:  the form, None before ``survey``
    """

    sources: Sources
    labels: Tensor
    classes: Sequence[str]
    what: str
    given: Form | None = None

    @property
    def form(self) -> Form:
        """The shape that every image gets."""
        assert self.given is not None, "survey first"
        return self.given

    def __getitem__(self, rows: np.ndarray, /) -> Samples:
        """Decoded samples of these rows ``(m,)``."""
        raw = np.empty((len(rows), self.form.channels, self.form.height, self.form.width), np.uint8)
        with bar(f"reading {self.what}", len(rows)) as advance:
            for position, row in enumerate(rows.tolist()):
                with _open(self.sources, row, self.what) as (image, name):
                    raw[position] = _decode(image, self.form, name)
                advance(1)
        samples = Samples.from_arrays(raw, self.labels[rows], self.classes, what=self.what)
        return replace(samples, origin=torch.from_numpy(rows))

    def bytes_per_sample(self, _: int | None) -> int:
        """Bytes of memory for each decoded sample. ``form`` already has the size after resizing."""
        return PER_SAMPLE + self.form.channels * self.form.height * self.form.width


def survey(chosen: Sequence[tuple[Images, np.ndarray]], size: int | None) -> list[Images]:
    """Set the form of the splits from the images in the chosen rows: grey if all are grey, else RGB.

    size: pixels to which all images are resized; None requires images of the same size
    """
    first, rows = chosen[0]
    with _open(first.sources, int(rows[0]), first.what) as (image, _):
        width, height = image.size if size is None else (size, size)
    form = Form(1, height, width, resize=size is not None)
    for split, rows in chosen:
        for row in rows.tolist():
            with _open(split.sources, row, split.what) as (image, name):
                _check_size(image, form, name)
                if not _is_grey(image):
                    form = replace(form, channels=3)
    return [replace(split, given=form) for split, _ in chosen]


@contextmanager
def _open(sources: Sources, row: int, what: str) -> Iterator[tuple[Image, str]]:
    """An image and its name in messages; every error while it is read becomes an ``InputError``."""
    from PIL import Image, UnidentifiedImageError

    source = sources[row]
    name = f"'{source}'" if isinstance(source, Path) else f"image {row} of {what}"
    try:
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"{name} has {image.width}×{image.height} pixels, too many: make it smaller.")
            yield image, name
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        why = "not an image that Pillow can read" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise InputError(f"{name} cannot be read ({why}): replace or remove it.") from None


def _check_size(image: Image, form: Form, name: str) -> None:
    if not form.resize and image.size != (form.width, form.height):
        raise InputError(
            f"{name} is {image.width}×{image.height} where the other images are {form.width}×{form.height}: "
            "pass size (--size) to resize them all."
        )


def _is_grey(image: Image) -> bool:
    if image.mode == "P":
        palette = np.reshape(image.getpalette() or [], (-1, 3))
        return bool((palette == palette[:, :1]).all())
    return image.mode.split(";")[0] in GREY


def _decode(image: Image, form: Form, name: str) -> np.ndarray:
    """``(C, H, W)`` uint8."""
    _check_size(image, form, name)
    image = to_eight_bits(image).convert("L" if form.channels == 1 else "RGB")
    if form.resize:
        image = image.resize((form.width, form.height))
    return np.asarray(image).reshape(form.height, form.width, form.channels).transpose(2, 0, 1)


def to_eight_bits(image: Image) -> Image:
    """Scale 16-bit grey to 8 bits; Pillow's own conversion would clip all but the darkest values to white."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int32) // 257).clip(0, 255).astype(np.uint8))
