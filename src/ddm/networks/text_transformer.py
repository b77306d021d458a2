"""A small transformer encoder that classifies texts, given as token ids."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddm.errors import InputError
from ddm.networks.base import Network, check_scaling
from ddm.networks.options import check_integer, check_share
from ddm.networks.transformer import Block

ID_TYPES = (torch.int64, torch.int32)


class TextTransformer(Network):
    """Token and position embeddings, `depth` pre-norm transformer blocks, the mean over tokens, a linear classifier.

    shape:      (T,), the maximum number of tokens of a text
    vocabulary: number of token ids; the ids are 0, ..., vocabulary - 1
    width:      size of a token's embedding
    ratio:      units of the hidden layer of each block's perceptron, as a multiple of `width`
    dropout:    probability that training sets an embedding value, or an output of a block's layer, to 0
    scale, shift: the outputs are `scale * classifier(features) + shift`

    Texts of a batch have the same number of tokens t ≤ T, so shorter texts are padded on the right. The attention mask
    is 0 at the padding. The logits of a text do not depend on its padding.
    """

    learning_rate = 0.01  # at 0.03 the loss rises in the first steps

    inputs = "token ids"

    def __init__(
        self,
        shape: Sequence[int] = (64,),
        classes: int = 2,
        *,
        vocabulary: int,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        ratio: int = 4,
        dropout: float = 0.0,
        scale: float = 1.0,
        shift: float = 0.0,
        init: str = "kaiming",
        seed: int = 0,
    ) -> None:
        vocabulary, ratio = check_integer("vocabulary", vocabulary), check_integer("ratio", ratio)
        width, heads = check_integer("width", width), check_integer("heads", heads)
        depth, dropout = check_integer("depth", depth, maximum=1000), check_share("dropout", dropout)
        if width % heads:
            raise InputError(f"give a width that divides by heads ({heads}), not {width}.")
        options: dict[str, Any] = {
            "vocabulary": vocabulary,
            "width": width,
            "depth": depth,
            "heads": heads,
            "ratio": ratio,
        }
        options |= check_scaling(scale, shift)
        super().__init__("text-transformer", shape, classes, init=init, seed=seed, **options, dropout=dropout)
        with self.building():
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(torch.empty(*self.shape, width))
            self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
            self.blocks = nn.ModuleList(Block(width, heads, ratio=ratio, dropout=dropout) for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            self.classifier = nn.Linear(width, self.classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (b, classes) of token ids (b, t). The mask (b, t) is 1 at tokens and 0 at padding; None: all 1."""
        return self.outputs(self.features(input_ids, attention_mask))

    def features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Penultimate features (b, width) of token ids (b, t) and a mask (b, t), which is 0 at padding."""
        if input_ids.dtype not in ID_TYPES:
            raise InputError(f"give this network token ids as int64, not {input_ids.dtype}: use mlp for tables.")
        if input_ids.ndim != 2 or not 1 <= input_ids.shape[1] <= self.shape[0]:
            raise InputError(
                f"give this network token ids of shape (b, t) with t from 1 to {self.shape[0]}, "
                f"not {tuple(input_ids.shape)}."
            )
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise InputError(
                f"give an attention mask of the shape of the token ids, {tuple(input_ids.shape)}, "
                f"not {tuple(attention_mask.shape)}."
            )
        return self.embed(input_ids, attention_mask)

    def embed(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Features (b, width) of token ids (b, t) and a mask (b, t)."""
        mask = None if attention_mask is None else attention_mask != 0
        tokens = self.dropout(self.tokens(input_ids) + self.positions[: input_ids.shape[1]])
        for block in self.blocks:
            tokens = block(tokens, mask)
        return _mean(self.norm(tokens), mask)


def _mean(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Mean (b, dim) over the tokens (b, t, dim) where the mask (b, t) is True; 0 if it is True nowhere."""
    if mask is None:
        return tokens.mean(1)
    counted = mask.to(tokens.dtype)
    return (tokens * counted[..., None]).sum(1) / counted.sum(1, keepdim=True).clamp(min=1)
