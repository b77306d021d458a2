"""Attention and position embeddings of the vision transformer."""

import torch
from torch import nn

from ddm.networks.simplevit import Attention, sine_cosine


def test_attention_equals_torchs():
    ours, theirs = Attention(8, 2), nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    theirs.in_proj_weight.data = ours.query_key_value.weight.data
    theirs.out_proj.weight.data = ours.out.weight.data
    tokens = torch.randn(3, 5, 8)
    torch.testing.assert_close(ours(tokens), theirs(tokens, tokens, tokens)[0])


def test_every_patch_has_a_different_position_embedding():
    positions = sine_cosine(7, 9, 16)
    assert positions.shape == (63, 16)
    assert len(positions.unique(dim=0)) == 63
