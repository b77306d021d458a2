"""The transformer block that the networks for images and for texts share."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a two-layer perceptron, each with pre-norm and a residual connection, on tokens (b, t, dim).

    ratio:   units of the perceptron's hidden layer, as a multiple of `dim`
    dropout: probability that training sets an output of the attention or of the perceptron to 0
    """

    def __init__(self, dim: int, heads: int, *, ratio: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(dim), Attention(dim, heads))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim)
        )
        self.dropout = nn.Dropout(dropout) if dropout else None  # hashes of older runs cover the printed layers

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (b, t, dim) from tokens (b, t, dim). Attention ignores tokens where the mask (b, t) is False."""
        norm, attention = self.attention
        tokens = tokens + self._drop(attention(norm(tokens), mask))
        return tokens + self._drop(self.perceptron(tokens))

    def _drop(self, outputs: Tensor) -> Tensor:
        if self.dropout is None:
            return outputs
        dropped: Tensor = self.dropout(outputs)
        return dropped


class Attention(nn.Module):
    """Softmax attention with `heads` heads on tokens (b, t, dim).

    It does not use `scaled_dot_product_attention`, whose CPU kernel has no second derivative.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens (b, t, dim) from tokens (b, t, dim). Attention ignores tokens where the mask (b, t) is False."""
        joint: Tensor = self.query_key_value(tokens)
        split = joint.reshape(*joint.shape[:2], 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (b, heads, t, dim / heads)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5  # (b, heads, t, t)
        if mask is not None:
            # The lowest finite score: with infinity, a text without any token would have NaN outputs.
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
        out: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return out
