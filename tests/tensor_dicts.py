"""Comparison of dictionaries of tensors, such as network states."""

import torch


def same_tensors(one, other):
    """True if both dictionaries have the same names and identical tensors."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
