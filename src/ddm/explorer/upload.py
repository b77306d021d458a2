"""Pictures that visitors upload: checked, decoded, and converted to the shape of the run's images."""

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

MAX_BYTES = 5 * 2**20
MAX_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")

MAX_CHARACTERS = 16_384
"""Maximum length of a picture in an address: servers may reject longer addresses."""


def decode(content: bytes, like: Samples) -> Tensor:
    """Decode a picture file into an image ``(C, H, W)`` uint8 with the size and channels of ``like``."""
    channels, height, width = like.shape
    if like.pixels.dtype != torch.uint8 or channels not in (1, 3):
        raise InputError("your own pictures need a run of 8-bit grey or colour images: choose a test image.")
    if len(content) > MAX_BYTES:
        raise InputError(f"the picture is larger than {MAX_BYTES // 2**20} MB: use a smaller file.")
    picture = _open_picture(content).convert("L" if channels == 1 else "RGB").resize((width, height))
    return torch.from_numpy(np.array(picture).reshape(height, width, channels).transpose(2, 0, 1).copy())


def _open_picture(content: bytes) -> Image:
    """Open a picture upright, on white, in 8 bits. Its size is checked before its pixels are decoded."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            if file.width * file.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            return _on_white(to_eight_bits(ImageOps.exif_transpose(file)))
    except Image.DecompressionBombError:
        raise InputError(
            f"the picture has more than {MAX_PIXELS // 10**6} million pixels: use a smaller one."
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"this file is not a picture in a known format: use {', '.join(FORMATS)}.") from None
    except Exception:  # Pillow's decoders raise many kinds on damaged files
        raise InputError("this picture is damaged: use another file.") from None


def _on_white(picture: Image) -> Image:
    """Replace transparency by white."""
    from PIL import Image

    if not picture.has_transparency_data:
        return picture
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)


def as_text(image: Tensor) -> str:
    """Encode an image ``(C, H, W)`` uint8 as text for an address: a PNG file in base64."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG", optimize=True)
    return base64.urlsafe_b64encode(file.getvalue()).decode().rstrip("=")


def restore(text: str, like: Samples) -> Tensor:
    """Decode the image ``(C, H, W)`` from text of ``as_text``."""
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InputError("the picture in the address is damaged: drop it on the page again.") from None
    return decode(content, like)
