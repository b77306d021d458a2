"""A network as a function of one vector has the same outputs, gradients and states as the network itself."""

import copy
import os
import pickle
import signal
import threading

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.networks.flat import FlatNetwork
from ddm.networks.state import load_state, state_of

from .conftest import random_inputs, small


class Odd(nn.Module):
    """A network with tied and frozen parameters, BatchNorm, dropout, a scalar, and persistent and other buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.last.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("stored", torch.randn(5))
        self.register_buffer("temporary", torch.randn(5), persistent=False)

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.first(x.flatten(1)))))
        return self.last(x) * self.scale + self.frozen + self.stored + self.temporary


def odd(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Odd()
        network(torch.randn(20, 5) + 2)  # sets the running statistics
        return network


NETWORKS = {
    "odd": odd,
    "convnet": lambda: ddm.networks.ConvNet((1, 6, 6), 3, width=4, depth=2),
    "batchnorm": lambda: ddm.networks.ConvNet((1, 6, 6), 3, width=4, depth=2, norm="batch"),
    "simplevit": lambda: ddm.networks.SimpleViT((1, 6, 6), 3, dim=8, depth=1, heads=2),
    "mlp": lambda: ddm.networks.MLP((5,), 3, width=4, dropout=0.5),
    "text-transformer": lambda: small("text-transformer", (6,), 3, dropout=0.5),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    network = NETWORKS[request.param]()
    return network, torch.randn(4, 5) if request.param == "odd" else random_inputs(network, 4)


def parts(network):
    flat, state = FlatNetwork(network), state_of(network)
    return flat, flat.vector(state), flat.fixed(state)


def test_outputs_are_those_of_the_network_in_evaluation_mode(case):
    network, x = case
    flat, theta, fixed = parts(network)
    assert torch.equal(flat(theta, fixed, x), copy.deepcopy(network).eval()(x))


def test_gradients_are_those_of_the_network(case):
    network, x = case
    flat, theta, fixed = parts(network)
    theta.requires_grad_()
    (gradient,) = torch.autograd.grad(flat(theta, fixed, x).square().sum(), theta)
    network.eval()
    network(x).square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters() if p.requires_grad])
    torch.testing.assert_close(gradient, expected)


def test_outputs_at_another_vector_are_those_of_the_network_with_these_parameters(case):
    network, x = case
    flat, theta, fixed = parts(network)
    other = theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.eval()
        torch.nn.utils.vector_to_parameters(other, [p for p in network.parameters() if p.requires_grad])
        torch.testing.assert_close(flat(other, fixed, x), network(x))


def test_unflattening_a_vector_restores_the_parameters(case):
    network, _ = case
    flat, theta, fixed = parts(network)
    assert flat.size == len(theta) == sum(flat.sizes)
    assert same_tensors(state_of(network), {**flat.unflatten(theta), **fixed})
    assert torch.equal(flat.vector(flat.unflatten(theta)), theta)


def test_a_module_created_from_a_vector_is_an_independent_network(case):
    network, x = case
    flat, theta, fixed = parts(network)
    module = flat.module(theta + 0.1, fixed)
    assert type(module) is type(network)
    assert not module.training
    torch.testing.assert_close(module(x), flat(theta + 0.1, fixed, x))
    trainable = {name: p.requires_grad for name, p in network.named_parameters()}
    assert {name: p.requires_grad for name, p in module.named_parameters()} == trainable
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(flat(theta, fixed, x), FlatNetwork(network)(theta, fixed, x))


def test_the_original_network_does_not_change():
    network = odd()
    trainable = {name: p.requires_grad for name, p in network.named_parameters()}
    before = state_of(network)
    flat, theta, fixed = parts(network)
    flat(theta, fixed, torch.randn(3, 5))
    flat.module(theta + 1, fixed)
    assert network.training
    assert {name: p.requires_grad for name, p in network.named_parameters()} == trainable
    assert same_tensors(state_of(network), before)


def test_frozen_parameters_and_persistent_buffers_are_fixed():
    flat, theta, fixed = parts(odd())
    assert set(flat.shapes) == {"first.weight", "first.bias", "norm.weight", "norm.bias", "scale"}
    assert set(fixed) == {"frozen", "stored", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert len(theta) == 25 + 5 + 5 + 5 + 1


def test_a_state_is_a_copy_and_loading_it_restores_the_network():
    network, x = odd().eval(), torch.randn(3, 5)
    state, before = state_of(network), network(x)
    with torch.no_grad():
        for tensor in (*network.parameters(), network.norm.running_mean, network.stored):
            tensor.add_(1)
    assert not torch.equal(network(x), before)
    load_state(network, state)
    assert torch.equal(network(x), before)
    assert network.last.weight is network.first.weight


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([torch.float32, torch.float64]), st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_inputs_are_cast_to_the_dtype_of_the_vector(network, inputs):
    flat, theta, fixed = parts(odd().to(network))
    assert flat(theta, fixed, torch.ones(2, 5, dtype=inputs)).dtype == network


def test_integer_inputs_are_not_cast():
    network = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    flat, theta, fixed = parts(network)
    words = torch.tensor([[0, 3, 6]])
    assert torch.equal(flat(theta, fixed, words), network(words))


class Waiting(nn.Module):
    """A network whose forward pass calls ``wait`` first, so that a test can stop it there."""

    def __init__(self, wait):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.wait = wait

    def forward(self, x):
        self.wait()
        return self.layer(x)

    def __deepcopy__(self, memo):
        copied = type(self)(self.wait)
        copied.layer = copy.deepcopy(self.layer, memo)
        return copied


def attention_kernels():
    """Which attention kernels torch may use: flags of the whole process."""
    backends = torch.backends.cuda
    return backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled()


def test_threads_that_call_one_network_at_the_same_time_use_their_own_parameters():
    """Both threads are inside the forward pass before either computes. The thread ``first`` leaves first."""
    barrier, left = threading.Barrier(2), threading.Event()

    def wait():
        barrier.wait(60)
        if threading.current_thread().name == "last":
            left.wait(60)

    network, x, kernels = Waiting(wait), torch.eye(2), attention_kernels()
    flat, theta, fixed = parts(network)
    outputs = {}

    def call(name, at):
        outputs[name] = flat(at, fixed, x).detach()
        left.set()

    threads = [
        threading.Thread(target=call, args=(name, theta + shift), name=name)
        for name, shift in (("first", 1.0), ("last", 2.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, shift in (("first", 1.0), ("last", 2.0)):
        moved = flat.unflatten(theta + shift)
        assert torch.equal(outputs[name], F.linear(x, moved["layer.weight"], moved["layer.bias"])), name
    assert same_tensors(state_of(flat.network), state_of(network))
    assert attention_kernels() == kernels


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_during_a_forward_pass_computes_the_same_outputs():
    inside, leave = threading.Event(), threading.Event()

    def wait():
        if threading.current_thread().name == "inside":
            inside.set()
            leave.wait(60)

    kernels = attention_kernels()
    flat, theta, fixed = parts(Waiting(wait))
    expected = flat(theta, fixed, torch.eye(2))
    thread = threading.Thread(target=flat, args=(theta + 1, fixed, torch.eye(2)), name="inside")
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills the child if it hangs, and the test fails
        same = torch.equal(flat(theta, fixed, torch.eye(2)), expected) and attention_kernels() == kernels
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert status == 0
    assert attention_kernels() == kernels


def test_a_network_can_be_pickled_after_a_call(case):
    network, x = case
    flat, theta, fixed = parts(network)
    expected = flat(theta, fixed, x)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert torch.equal(pickle.loads(dumps(flat))(theta, fixed, x), expected)


def test_the_copy_of_a_thread_shares_the_parameters(case):
    network, x = case
    flat, theta, fixed = parts(network)
    flat(theta, fixed, x)
    shared = {tensor.data_ptr() for tensor in flat.network.parameters()}
    assert {tensor.data_ptr() for tensor in flat._thread_copy().parameters()} == shared
