"""Normalisation uses larger groups, or none, where a group would have fewer than four values."""

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
def test_the_number_of_groups_follows_from_kind_channels_and_size(kind, channels, size, groups):
    norm = make_norm(kind, channels, size)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


@pytest.mark.parametrize("kind", ["layer", "instance", "group"])
def test_fewer_than_four_values_are_not_normalised(kind):
    assert isinstance(make_norm(kind, 3, (1, 1)), nn.Identity)
