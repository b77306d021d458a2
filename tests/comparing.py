"""How tests compare."""

import torch


def same_tensors(one, other):
    """Whether two sets of tensors have the same names and identical values."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
