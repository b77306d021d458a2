"""Networks are built by name, and their options are validated."""

import inspect
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
    parameters = inspect.signature(NETWORKS[name]).parameters.values()
    options = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    spec = small(name, (1, 8, 8), 2, **({"dropout": 0.5} if "dropout" in options else {})).spec
    assert set(spec) == {"name", *options, "shape", "classes"}


def test_a_convnet_without_dropout_is_the_network_that_older_runs_stored():
    plain, dropping = (build("convnet", (1, 8, 8), 3, dropout=share) for share in (0.0, 0.5))
    assert "dropout" not in plain.spec
    assert "Dropout" not in str(plain)
    assert_same_weights(plain, dropping)
    assert_same_weights(dropping, from_spec(json.loads(json.dumps(dropping.spec))))


def test_a_convnet_drops_features_only_in_training():
    network = build("convnet", (1, 8, 8), 3, dropout=0.5)
    x = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = build("convnet", (1, 8, 8), 3).features(x)
    torch.testing.assert_close(network.eval().features(x), plain)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = network.train().features(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])
    assert 0.4 < float(kept[plain != 0].float().mean()) < 0.6


def test_numpy_integers_become_plain_integers():
    spec = build("convnet", (np.int64(1), np.int64(4), np.int64(4)), np.int64(3), seed=np.int64(5)).spec
    assert json.loads(json.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "vgg"}, "convnet, alexnet, resnet18ap, simplevit"),
        ({"name": ["convnet"]}, "convnet, alexnet"),
        ({"colour": 3}, "depth, width, norm, pooling, dropout, init, seed"),
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
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": "0.2"}, "dropout"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"name": "alexnet", "width": 0}, "width"),
        ({"name": "resnet18ap", "norm": "none"}, "batch, instance, group"),
        ({"name": "simplevit", "dim": 10}, "divides by 4"),
        ({"name": "simplevit", "heads": 3}, "heads"),
        ({"name": "simplevit", "patch": 0}, "patch"),
        ({"shape": (30,)}, r"images of shape \(channels, height, width\), not \(30,\): use mlp"),
        ({"name": "simplevit", "shape": (30,)}, "use mlp for tables, or text-transformer for token ids"),
        ({"name": "mlp"}, r"tables of shape \(columns,\), not \(1, 8, 8\): use convnet"),
        ({"name": "mlp", "shape": (8, 8)}, "columns"),
        ({"name": "mlp", "shape": 30}, "columns"),
        ({"name": "mlp", "shape": (0,)}, "at least 1"),
        ({"name": "mlp", "shape": (30,), "depth": 0}, "depth"),
        ({"name": "mlp", "shape": (30,), "dropout": 1}, "dropout"),
        ({"name": "text-transformer"}, r"token ids of shape \(length,\), not \(1, 8, 8\): use convnet"),
        ({"name": "text-transformer", "shape": (30,)}, "needs the option vocabulary"),
        ({"name": "text-transformer", "shape": (30,), "vocabulary": 0.5}, "vocabulary"),
        ({"name": "text-transformer", "shape": (30,), "vocabulary": 9, "heads": 3}, "heads"),
        ({"name": "text-transformer", "shape": (30,), "vocabulary": 9, "ratio": 0}, "ratio"),
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
