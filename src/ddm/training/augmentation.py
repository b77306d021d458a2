"""Random horizontal flips and shifts of images: differentiable, and reproducible from a random generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ddm.data.inputs import X
from ddm.errors import InputError

KINDS = ("none", "flip", "shift", "flip-shift")


def check(kind: str) -> None:
    """Refuse an unknown kind of augmentation."""
    if kind not in KINDS:
        raise InputError(f"there is no augmentation '{kind}': use one of {', '.join(KINDS)}.")


def check_shape(kind: str, shape: tuple[int, ...]) -> None:
    """Refuse to augment inputs that are not images ``(C, H, W)``."""
    if kind != "none" and len(shape) != 3:
        raise InputError(f"only images can be augmented, not inputs of shape {shape}: use augment='none'.")


def augment(images: X, kind: str, generator: torch.Generator) -> X:
    """Flip each image of ``(b, C, H, W)`` with probability ½, shift it by up to an eighth of its side, or both."""
    if kind == "none" or not isinstance(images, Tensor):
        return images
    if "flip" in kind:
        flipped = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(flipped.view(-1, 1, 1, 1).to(images.device), images.flip(-1), images)
    if "shift" in kind:
        images = _shift(images, generator)
    return images


def _shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by a random number of pixels, and fill the border with zeros."""
    count, _, height, width = images.shape
    reach = max(1, min(height, width) // 8)
    offsets = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=generator).to(images.device)
    rows = offsets[0] + torch.arange(height, device=images.device)
    columns = offsets[1] + torch.arange(width, device=images.device)
    padded = F.pad(images, (reach,) * 4)
    samples = torch.arange(count, device=images.device).view(-1, 1, 1)
    return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
