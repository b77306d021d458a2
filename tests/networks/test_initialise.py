"""Initial weights depend on the seed alone."""

import math

import pytest
import torch
from torch import nn

from ddm.errors import InputError
from ddm.networks import initialise

from .conftest import small


def flat(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


class Mixed(nn.Module):
    """A module with every kind of parameter, some in layers that a user wrote."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(8, 64, 3)
        self.linear = nn.Linear(300, 500)
        self.batch = nn.BatchNorm2d(64)
        self.layer = nn.LayerNorm((4, 5))
        self.own = OwnNorm()
        self.attention = nn.MultiheadAttention(64, 4)
        self.embedding = nn.Embedding(100, 50)
        self.token = nn.Parameter(torch.ones(1, 1, 4000))


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name):
    first, second, other = (flat(small(name, (1, 8, 8), 3, seed=seed)) for seed in (4, 4, 5))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("how", ["kaiming", "normal", "xavier"])
def test_the_global_generator_is_neither_used_nor_changed(name, how):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    network = small(name, (1, 8, 8), 3, init=how)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(flat(network), flat(small(name, (1, 8, 8), 3, init=how)))


def test_initialise_gives_the_same_weights_as_building_with_that_seed(name):
    network = small(name, (1, 8, 8), 3)
    initialise(network, "xavier", 9)
    assert torch.equal(flat(network), flat(small(name, (1, 8, 8), 3, init="xavier", seed=9)))


@pytest.mark.parametrize(
    ("how", "of_convolution", "of_linear"),
    [
        ("kaiming", math.sqrt(2 / 72), math.sqrt(2 / 300)),
        ("normal", 0.02, 0.02),
        ("xavier", math.sqrt(2 / (72 + 576)), math.sqrt(2 / 800)),
    ],
)
def test_each_scheme_draws_weights_with_its_standard_deviation(how, of_convolution, of_linear):
    network = Mixed()
    initialise(network, how, 0)
    expected = {
        network.convolution.weight: of_convolution,
        network.linear.weight: of_linear,
        network.attention.in_proj_weight: 0.02,
        network.embedding.weight: 0.02,
        network.token: 0.02,
    }
    for weight, spread in expected.items():
        assert weight.std().item() == pytest.approx(spread, rel=0.05)
        assert weight.mean().abs().item() < 5 * spread / math.sqrt(weight.numel())


def test_norm_layers_start_with_scale_one_and_biases_with_zero():
    network = Mixed()
    network.batch(torch.randn(3, 64, 2, 2) + 5)
    initialise(network, "kaiming", 0)
    assert all((norm.weight == 1).all() for norm in (network.batch, network.layer, network.own))
    assert all((value == 0).all() for name, value in network.named_parameters() if "bias" in name)
    assert (network.batch.running_mean == 0).all()
    assert (network.batch.running_var == 1).all()


def test_the_dtype_does_not_change_the_weights():
    single, double = Mixed(), Mixed().double()
    initialise(single, "kaiming", 3)
    initialise(double, "kaiming", 3)
    assert torch.equal(flat(single).double(), flat(double))


def test_parameters_are_set_in_place():
    network = nn.Linear(3, 2)
    weight = network.weight
    initialise(network, "normal", 0)
    assert network.weight is weight
    assert weight.requires_grad
    assert weight.is_leaf


@pytest.mark.parametrize(("how", "seed"), [("uniform", 0), ("kaiming", -1), ("kaiming", 1.5)])
def test_an_unknown_scheme_or_an_invalid_seed_is_refused(how, seed):
    with pytest.raises(InputError):
        initialise(nn.Linear(2, 2), how, seed)
