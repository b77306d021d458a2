"""Penultimate features of built-in networks and of users' modules."""

import pytest
import torch
from torch import nn

from ddm.data.inputs import Inputs
from ddm.networks import penultimate

from .conftest import random_inputs, small


def count_hooks(network):
    return sum(len(module._forward_pre_hooks) for module in network.modules())


def test_built_in_networks_return_their_features(name):
    network = small(name, (1, 8, 8), 3)
    x = random_inputs(network)
    assert torch.equal(penultimate(network, x), network.features(x))


def test_features_of_a_sequential_are_the_inputs_of_its_last_linear_layer():
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3), nn.Softmax(1))
    x = torch.randn(5, 3, 2, 2)
    assert torch.equal(penultimate(network, x), network[:3](x))
    assert count_hooks(network) == 0


def test_the_last_linear_layer_is_the_one_called_last_not_defined_last():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 2)
            self.body = nn.Linear(4, 6)
            self.unused = nn.Linear(9, 9)

        def forward(self, x):
            return self.head(input=self.body(x).relu())

    network, x = Crossed(), torch.randn(5, 4)
    assert torch.equal(penultimate(network, x), network.body(x).relu())


def test_features_with_more_than_two_dimensions_are_flattened():
    x = torch.randn(5, 3, 4)
    assert torch.equal(penultimate(nn.Linear(4, 2), x), x.flatten(1))


@pytest.mark.parametrize("network", [nn.Conv2d(1, 2, 3), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())])
def test_without_a_linear_layer_the_outputs_are_the_features(network):
    x = torch.randn(5, 1, 4, 4)
    assert torch.equal(penultimate(network, x), network(x).flatten(1))


def test_a_network_gets_all_arguments_of_a_batch():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x, *, mask):
            return {"logits": self.head(x * mask)}

    network, x, mask = Masked(), torch.randn(5, 4), torch.arange(4) < 2
    assert torch.equal(penultimate(network, Inputs({"x": x, "mask": mask})), x * mask)


def test_hooks_are_removed_after_an_error():
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(9, 2))
    with pytest.raises(RuntimeError):
        penultimate(network, torch.randn(5, 4))
    assert count_hooks(network) == 0


def test_features_can_be_differentiated():
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    penultimate(network, torch.randn(5, 4)).sum().backward()
    assert network[0].weight.grad is not None
    assert network[2].weight.grad is None
