"""A plain vision transformer (Beyer et al., 2022): fixed 2-D sine-cosine position embeddings, mean over tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddm.errors import InputError
from ddm.networks.base import Network
from ddm.networks.options import check_integer
from ddm.networks.transformer import Block

MAX_TOKENS = 64


class SimpleViT(Network):
    """Patches as tokens, `depth` pre-norm transformer blocks, the mean over tokens, then a linear classifier.

    dim:   size of a token
    patch: side of a patch in pixels; by default the smallest with at most 64 tokens

    Inputs whose sides are not multiples of `patch` are padded with zeros on the right and at the bottom.
    """

    learning_rate = 0.01  # at 0.1 the loss on small datasets starts higher and falls less

    positions: Tensor

    def __init__(
        self,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        *,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        patch: int | None = None,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        dim, heads = check_integer("dim", dim), check_integer("heads", heads)
        depth = check_integer("depth", depth, maximum=1000)
        if dim % 4 or dim % heads:
            raise InputError(f"give a dim that divides by 4 and by heads ({heads}), not {dim}.")
        _, height, width = self.check_shape(shape)
        patch = _smallest_patch(height, width) if patch is None else check_integer("patch", patch)
        options = {"dim": dim, "depth": depth, "heads": heads, "patch": patch}
        super().__init__("simplevit", shape, classes, init=init, seed=seed, **options)
        rows, columns = -(-height // patch), -(-width // patch)
        with self.building():
            self.pad = nn.ZeroPad2d((0, columns * patch - width, 0, rows * patch - height))
            self.patches = nn.Conv2d(self.shape[0], dim, patch, stride=patch)
            self.register_buffer("positions", sine_cosine(rows, columns, dim), persistent=False)
            self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
            self.norm = nn.LayerNorm(dim)
            self.classifier = nn.Linear(dim, self.classes)

    def embed(self, x: Tensor) -> Tensor:
        """Features (b, dim) of inputs (b, C, H, W)."""
        maps: Tensor = self.patches(self.pad(x))
        tokens: Tensor = self.norm(self.blocks(maps.flatten(2).transpose(1, 2) + self.positions))
        return tokens.mean(1)


def sine_cosine(rows: int, columns: int, dim: int) -> Tensor:
    """Position embeddings (rows · columns, dim): sines and cosines of the column, then of the row."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    # Moved, because linspace ignores `torch.device` contexts once a pretrained network failed to load.
    frequencies = 10_000.0 ** -torch.linspace(0, 1, dim // 4).to(row.device)
    angles = [axis.flatten()[:, None] * frequencies for axis in (column, row)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)


def _smallest_patch(height: int, width: int) -> int:
    patch = 1
    while -(-height // patch) * -(-width // patch) > MAX_TOKENS:
        patch += 1
    return patch
