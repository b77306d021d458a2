"""Attention of the transformer block."""

import pytest
import torch
from torch import nn

from ddm.networks.transformer import Attention, Block


@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_torchs(masked):
    ours, theirs = Attention(8, 2), nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    theirs.in_proj_weight.data = ours.query_key_value.weight.data
    theirs.out_proj.weight.data = ours.out.weight.data
    tokens = torch.randn(3, 5, 8)
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]]) if masked else None
    expected, _ = theirs(tokens, tokens, tokens, key_padding_mask=None if mask is None else ~mask)
    torch.testing.assert_close(ours(tokens, mask), expected)


def test_a_block_without_dropout_prints_no_layer_for_it():
    assert "dropout" not in str(Block(8, 2)).lower()
    assert "Dropout" in str(Block(8, 2, dropout=0.1))
