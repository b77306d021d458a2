"""A tiny BERT of Hugging Face's transformers with random weights, as a network of benchmark problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ddm.errors import InputError

NAME = "bert"
"""The name of the network in setups."""


def build(shape: Sequence[int], classes: int, *, vocabulary: int, width: int, depth: int, seed: int) -> nn.Module:
    """A BERT that classifies token ids ``(b, T)`` with a mask.

    shape: (T,), the number of tokens
    width: size of a token's embedding; each block has two heads and twice as many hidden units
    depth: number of blocks
    """
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError:
        raise InputError("this problem needs transformers: pip install 'distilled-datamodel[hub]'.") from None
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": 2,
        "intermediate_size": 2 * width,
        "max_position_embeddings": shape[0],
        "num_labels": classes,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = BertForSequenceClassification(BertConfig(**sizes))  # type: ignore[no-untyped-call]
    return network
