"""Normalisation falls back where a group would be too small to mean anything."""

import pytest
from torch import nn

from ddm.networks.norm import make_norm


@pytest.mark.parametrize(
    ("kind", "channels", "size", "groups"),
    [
        ("group", 32, (4, 4), 4),
        ("group", 12, (4, 4), 2),
        ("group", 7, (4, 4), 1),
        ("group", 13, (4, 4), 13),
        ("group", 13, (1, 1), 1),
        ("instance", 32, (2, 2), 32),
        ("instance", 32, (1, 2), 1),
        ("layer", 32, (1, 1), 1),
    ],
)
def test_number_of_groups(kind, channels, size, groups):
    norm = make_norm(kind, channels, size)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


@pytest.mark.parametrize("kind", ["layer", "instance", "group"])
def test_fewer_than_four_values_are_left_alone(kind):
    assert isinstance(make_norm(kind, 3, (1, 1)), nn.Identity)
