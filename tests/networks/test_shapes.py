"""Every network works with inputs of any size and any number of classes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddm.errors import InputError
from ddm.networks import NETWORKS, ConvNet, ResNet18AP, SimpleViT, build, names
from ddm.networks.norm import NORMS
from ddm.networks.pooling import POOLINGS, make_pooling

from .conftest import REQUIRED, fitting_shape, random_inputs, small

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 1, 1), (4, 17, 23)]
side = st.integers(1, 24)
shapes = st.tuples(st.integers(1, 4), side, side)


def assert_finite_logits(network, classes):
    x = random_inputs(network)
    features, logits = network.features(x), network(x)
    assert features.shape == (2, network.classifier.in_features)
    assert logits.shape == (2, classes)
    assert logits.isfinite().all()
    assert torch.equal(network.classifier(features), logits)


@pytest.mark.parametrize("classes", [1, 2, 200])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logits_are_finite_and_one_per_class(name, shape, classes):
    assert_finite_logits(small(name, shape, classes), classes)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)], ids=str)
def test_networks_of_default_size_return_finite_logits(name, shape):
    network = build(name, fitting_shape(name, shape), 10, **REQUIRED.get(name, {}))
    assert_finite_logits(network, 10)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(names()), shape=shapes, classes=st.integers(1, 30))
def test_networks_work_with_any_shape_and_number_of_classes(name, shape, classes):
    assert_finite_logits(small(name, shape, classes), classes)


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    depth=st.integers(1, 6),
    width=st.integers(1, 17),
    norm=st.sampled_from(NORMS),
    pooling=st.sampled_from(POOLINGS),
)
def test_a_convnet_works_with_any_depth_width_norm_and_pooling(shape, depth, width, norm, pooling):
    network = ConvNet(shape, 3, depth=depth, width=width, norm=norm, pooling=pooling)
    assert_finite_logits(network.eval(), 3)


@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_a_resnet_works_with_any_norm(norm):
    assert_finite_logits(ResNet18AP((3, 17, 23), 3, width=4, norm=norm), 3)


@pytest.mark.parametrize("norm", NORMS)
def test_features_differ_between_images_even_if_maps_have_one_pixel(norm):
    network = ConvNet((1, 8, 8), 3, depth=6, width=16, norm=norm).eval()
    one, other = network.features(random_inputs(network))
    assert (one != 0).any()
    assert not torch.allclose(one, other, atol=1e-3)


def test_examples_do_not_influence_each_other(name):
    network = small(name, (3, 16, 16), 5)
    x = random_inputs(network, 4)
    torch.testing.assert_close(network(x), torch.cat([network(one[None]) for one in x]))


@settings(max_examples=30, deadline=None)
@given(height=st.integers(1, 300), width=st.integers(1, 300))
def test_simplevit_uses_at_most_64_tokens_and_the_smallest_patch(height, width):
    network = SimpleViT((1, height, width), 2, dim=4, heads=1, depth=1)
    patch = network.spec["patch"]
    assert len(network.positions) <= 64
    assert patch == 1 or -(-height // (patch - 1)) * -(-width // (patch - 1)) > 64


@pytest.mark.parametrize("name", [name for name in names() if NETWORKS[name].inputs == "images"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 1, 8), (2, 3, 9, 8), (2, 1, 8, 8, 1)], ids=str)
def test_an_image_of_another_shape_is_refused(name, shape):
    network = small(name, (3, 8, 8), 2)
    with pytest.raises(InputError, match=r"\(b, 3, 8, 8\)"):
        network(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(), (5,), (2, 6), (2, 5, 1)], ids=str)
def test_a_table_with_other_columns_is_refused(shape):
    with pytest.raises(InputError, match=r"\(b, 5\)"):
        build("mlp", (5,), 2)(torch.zeros(shape))


@pytest.mark.parametrize("size", [(2, 2), (7, 6), (1, 5), (4, 1)])
def test_average_pooling_equals_torchs(size):
    pooling, pooled = make_pooling("avg", size)
    x = torch.randn(3, 2, *size, requires_grad=True)
    expected = torch.nn.functional.avg_pool2d(x, pooling.kernel_size)
    torch.testing.assert_close(pooling(x), expected)
    assert pooling(x).shape[2:] == pooled
    (slope,) = torch.autograd.grad(pooling(x).square().sum(), x)
    torch.testing.assert_close(slope, torch.autograd.grad(expected.square().sum(), x)[0])


def test_a_vision_transformer_is_built_on_the_meta_device_even_if_linspace_ignores_it(monkeypatch):
    """linspace does so in a process in which a pretrained network failed to load."""
    linspace = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda *values: linspace(*values, device="cpu"))
    with torch.device("meta"):
        assert SimpleViT((1, 8, 8), 2, dim=8, depth=1, heads=2).positions.device.type == "meta"
