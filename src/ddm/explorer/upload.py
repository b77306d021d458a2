"""Pictures of the visitor's own: decoded with care, and made what the run's images are."""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ddm.data.images import to_eight_bits
from ddm.data.samples import Samples
from ddm.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 5 * 2**20
MOST_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

MOST_TEXT = 16_384
"""Characters of a picture in an address: a server need not read longer ones."""


def decode(content: bytes, like: Samples) -> Tensor:
    """The file of a picture as an image ``(C, H, W)`` uint8 of the size and colours that ``like`` has."""
    channels, height, width = like.shape
    if like.raw.dtype != torch.uint8 or channels not in (1, 3):
        raise InputError("pictures of your own need a run of 8-bit grey or colour images: choose a test image.")
    if len(content) > MOST_BYTES:
        raise InputError(f"the picture has more than {MOST_BYTES // 2**20} MB: give a smaller file.")
    picture = _opened(content).convert("L" if channels == 1 else "RGB").resize((width, height))
    return torch.from_numpy(np.array(picture).reshape(height, width, channels).transpose(2, 0, 1).copy())


def _opened(content: bytes) -> Image:
    """A picture as its viewer would see it: upright, on white, in 8 bits. Its header is checked before its pixels."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            if file.width * file.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            return _on_white(to_eight_bits(ImageOps.exif_transpose(file)))
    except Image.DecompressionBombError:
        raise InputError(f"the picture has more than {MOST_PIXELS // 10**6} million pixels: make it smaller.") from None
    except UnidentifiedImageError:
        raise InputError(f"this file is not a picture that can be read: give {', '.join(FORMATS)}.") from None
    except Exception:  # Pillow's decoders raise many kinds on damaged files
        raise InputError("this picture is damaged and cannot be read: give another file.") from None


def _on_white(picture: Image) -> Image:
    from PIL import Image

    if not picture.has_transparency_data:
        return picture
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)


def as_text(image: Tensor) -> str:
    """An image ``(C, H, W)`` uint8 as text for an address: a PNG file in letters and digits."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG", optimize=True)
    return base64.urlsafe_b64encode(file.getvalue()).decode().rstrip("=")


def restore(text: str, like: Samples) -> Tensor:
    """The image ``(C, H, W)`` that ``as_text`` wrote."""
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InputError("the picture in the address is damaged: drop it on the page again.") from None
    return decode(content, like)
