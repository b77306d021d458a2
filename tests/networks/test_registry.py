"""Networks are built by name, and their options are validated."""

import json

import numpy as np
import pytest
import torch

from ddm.errors import InputError
from ddm.networks import NETWORKS, Network, build, from_spec, names

from .conftest import SMALL, small


def assert_same_weights(one, other):
    assert one.state_dict().keys() == other.state_dict().keys()
    for key, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key


def test_the_spec_of_a_network_has_its_registered_name():
    assert names() == list(NETWORKS) == list(SMALL)
    assert [small(name, (1, 8, 8), 2).spec["name"] for name in names()] == names()


def test_a_spec_that_went_through_json_rebuilds_the_network(name):
    network = small(name, (3, 9, 12), 7, init="xavier", seed=11)
    again = from_spec(json.loads(json.dumps(network.spec)))
    assert isinstance(again, NETWORKS[name])
    assert again.spec == network.spec
    assert_same_weights(network, again)
    assert_same_weights(network, build(**network.spec))


def test_a_spec_holds_every_option(name):
    spec = NETWORKS[name]().spec
    assert set(spec) == {"name", *NETWORKS[name].__init__.__kwdefaults__, "shape", "classes"}


def test_numpy_integers_become_plain_integers():
    spec = build("convnet", (np.int64(1), np.int64(4), np.int64(4)), np.int64(3), seed=np.int64(5)).spec
    assert json.loads(json.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "vgg"}, "convnet, alexnet, resnet18ap, simplevit"),
        ({"name": ["convnet"]}, "convnet, alexnet"),
        ({"colour": 3}, "depth, width, norm, pooling, init, seed"),
        ({"shape": (8, 8)}, "channels, height, width"),
        ({"shape": 8}, "channels, height, width"),
        ({"shape": "188"}, "channels, height, width"),
        ({"shape": (1, 0, 8)}, "at least 1"),
        ({"shape": (1, 8.0, 8)}, "whole number"),
        ({"classes": 0}, "classes"),
        ({"depth": 0}, "depth"),
        ({"depth": "3"}, "depth"),
        ({"width": -1}, "width"),
        ({"norm": "spectral"}, "none, batch, layer, instance, group"),
        ({"pooling": None}, "none, max, avg"),
        ({"init": "zeros"}, "kaiming, normal, xavier"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"name": "alexnet", "width": 0}, "width"),
        ({"name": "resnet18ap", "norm": "none"}, "batch, instance, group"),
        ({"name": "simplevit", "dim": 10}, "divides by 4"),
        ({"name": "simplevit", "heads": 3}, "heads"),
        ({"name": "simplevit", "patch": 0}, "patch"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_with_the_valid_ones(arguments, says):
    with pytest.raises(InputError, match=says) as caught:
        build(**{"name": "convnet", "shape": (1, 8, 8), "classes": 10, **arguments})
    assert str(caught.value).endswith(".")


def test_an_incomplete_spec_is_refused():
    with pytest.raises(InputError, match="shape and classes"):
        from_spec({"name": "convnet"})


def test_a_network_class_must_define_embed():
    with pytest.raises(TypeError, match="embed"):
        Network("mine", (1, 2, 2), 2, init="normal", seed=0)
