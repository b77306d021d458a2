"""Pre-trained networks from the Hugging Face hub as feature extractors (extra ``hub``)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.errors import InputError


def image_features(source: str) -> Callable[[Tensor], Tensor]:
    """Load a model ``hf:NAME`` from the hub or a folder, as a function from images to features.

    The function maps images ``(b, C, H, W)`` to features ``(b, F)``. It resizes images to the model's input size. If
    the model needs another number of channels, it repeats the first channel. The images are already normalised, so it
    skips the model's own preprocessing.
    """
    if not source.startswith("hf:"):
        raise InputError(f"unknown features '{source}': give hf:NAME, a module or a callable.")
    name = source.removeprefix("hf:")
    try:
        from transformers import AutoModel
    except ImportError:
        raise InputError(
            "features from the hub need transformers: run pip install 'distilled-datamodel[hub]'."
        ) from None
    try:
        model = AutoModel.from_pretrained(name).eval()
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the hub model '{name}' could not be loaded: {reason}") from None
    size = getattr(model.config, "image_size", None)
    channels = getattr(model.config, "num_channels", 3)

    def extract(images: Tensor) -> Tensor:
        if images.shape[1] != channels:
            images = images[:, :1].expand(-1, channels, -1, -1)
        if isinstance(size, int) and images.shape[-2:] != (size, size):
            images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
        try:
            with torch.no_grad():
                outputs = model(pixel_values=images)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the hub model '{name}' does not accept images: {' '.join(str(error).split())}."
            ) from None
        pooled = getattr(outputs, "pooler_output", None)
        return _mean_pool(outputs.last_hidden_state) if pooled is None else pooled.flatten(1)

    return extract


def _mean_pool(hidden: Tensor) -> Tensor:
    """Mean over the tokens of ``(b, tokens, F)`` or over the pixels of ``(b, F, H, W)``."""
    return hidden.mean(1) if hidden.dim() == 3 else hidden.flatten(2).mean(2)
