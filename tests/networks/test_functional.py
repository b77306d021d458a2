"""Every network works under torch.func: vmap over weights, per-example gradients, second derivatives."""

import warnings

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from ddm.networks import NETWORKS, ConvNet, ResNet18AP, build, names

from .conftest import SMALL, fitting_shape, random_inputs

SHAPE, CLASSES, COUNT = (2, 8, 8), 3, 4
KINDS = [(name, SMALL[name]) for name in names()] + [
    ("convnet", {"width": 4, "norm": norm, "pooling": pooling})
    for norm, pooling in [("none", "max"), ("batch", "none"), ("layer", "avg"), ("instance", "avg")]
]


CONTINUOUS = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if NETWORKS[kind[0]].inputs != "token ids"], ids=str
)
"""Networks whose inputs have derivatives. Those of token ids are in test_text_transformer.py."""


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return request.param


@pytest.fixture
def make(kind):
    name, options = kind
    return lambda seed=0: build(name, fitting_shape(name, SHAPE), CLASSES, **options, seed=seed).double().eval()


@pytest.fixture(autouse=True)
def _no_slow_path():
    """Turns torch's warning about a missing batching rule into an error: torch would use a slow loop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        yield


@pytest.fixture
def batch(make):
    return random_inputs(make(), COUNT, torch.float64), torch.arange(COUNT) % CLASSES


def weights(network):
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def mean_loss(network):
    return lambda theta, x, y: F.cross_entropy(functional_call(network, theta, (x,)), y)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}")


def test_vmap_over_stacked_weights_equals_a_loop(make, batch):
    x, y = batch
    networks = [make(seed) for seed in range(3)]
    theta, buffers = stack_module_state(networks)
    theta = {name: value.detach() for name, value in theta.items()}
    logits = vmap(lambda theta, buffers: functional_call(networks[0], (theta, buffers), (x,)))(theta, buffers)
    torch.testing.assert_close(logits, torch.stack([network(x) for network in networks]))

    loss = mean_loss(networks[0])
    together = vmap(grad(loss), in_dims=(0, None, None))(theta, x, y)
    alone = [grad(loss)(weights(network), x, y) for network in networks]
    assert_equal(together, {name: torch.stack([one[name] for one in alone]) for name in together})


def test_per_example_gradients_under_vmap_equal_a_loop(make, batch):
    x, y = batch
    network = make()
    gradient = grad(mean_loss(network))
    together = vmap(lambda x, y: gradient(weights(network), x[None], y[None]), randomness="error")(x, y)
    alone = [gradient(weights(network), x[i : i + 1], y[i : i + 1]) for i in range(COUNT)]
    assert_equal(together, {name: torch.stack([one[name] for one in alone]) for name in together})


def directional_derivative(network, y):
    """The function x ↦ ⟨∇θ loss(θ, x), v⟩ for a fixed v. Distillation differentiates such functions of a gradient."""
    rng = torch.Generator().manual_seed(1)
    theta = weights(network)
    v = {name: torch.randn(value.shape, generator=rng).double() for name, value in theta.items()}
    gradient = grad(mean_loss(network))

    def product(x):
        slope = gradient(theta, x, y)
        return sum((slope[name] * v[name]).sum() for name in v)

    return product


@CONTINUOUS
def test_gradient_of_a_gradient_equals_finite_differences(make, batch):
    x, y = batch
    product = directional_derivative(make(), y)
    slope = grad(product)(x)
    rng = torch.Generator().manual_seed(2)
    for _ in range(3):
        step = torch.randn(x.shape, generator=rng).double()
        step = 1e-6 * step / step.norm()
        difference = (product(x + step) - product(x - step)) / 2
        torch.testing.assert_close((slope * step).sum(), difference, rtol=1e-4, atol=1e-10)


@CONTINUOUS
def test_gradient_of_a_gradient_under_vmap_equals_a_loop(make, batch):
    x, y = batch
    slope = grad(directional_derivative(make(), y))
    several = torch.stack([x, x.flip(0), 2 * x])
    torch.testing.assert_close(vmap(slope)(several), torch.stack([slope(one) for one in several]))


@CONTINUOUS
def test_autograd_and_torch_func_give_the_same_second_derivatives(make, batch):
    x, y = batch
    network = make()
    x = x.clone().requires_grad_()
    parameters = list(network.parameters())
    slope = torch.autograd.grad(F.cross_entropy(network(x), y), parameters, create_graph=True)
    (twice,) = torch.autograd.grad(sum(one.square().sum() for one in slope), x)
    gradient = grad(mean_loss(network))
    theta = weights(network)
    other = grad(lambda x: sum(one.square().sum() for one in gradient(theta, x, y).values()))(x.detach())
    torch.testing.assert_close(twice, other)


@pytest.mark.parametrize("network", [ConvNet, ResNet18AP])
def test_batch_norm_uses_batch_statistics_only_in_training_mode(network):
    trained = network((1, 8, 8), 2, width=4, norm="batch")
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3 + 1
    trained(x)
    trained.eval()
    torch.testing.assert_close(trained(x)[:1], trained(x[:1]))
