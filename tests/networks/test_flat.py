"""A network as a function of one vector: the same outputs, gradients and states as the network itself."""

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


class Odd(nn.Module):
    """Tied and frozen parameters, BatchNorm, dropout, a scalar, and buffers that are and are not kept."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.last.weight = self.first.weight
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("kept", torch.randn(5))
        self.register_buffer("passing", torch.randn(5), persistent=False)

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.first(x.flatten(1)))))
        return self.last(x) * self.scale + self.frozen + self.kept + self.passing


def odd(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Odd()
        network(torch.randn(20, 5) + 2)  # running statistics of its own
        return network


NETWORKS = {
    "odd": (odd, (5,)),
    "convnet": (lambda: ddm.networks.ConvNet((1, 6, 6), 3, width=4, depth=2), (1, 6, 6)),
    "batchnorm": (lambda: ddm.networks.ConvNet((1, 6, 6), 3, width=4, depth=2, norm="batch"), (1, 6, 6)),
    "simplevit": (lambda: ddm.networks.SimpleViT((1, 6, 6), 3, dim=8, depth=1, heads=2), (1, 6, 6)),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    make, shape = NETWORKS[request.param]
    return make(), torch.randn(4, *shape, generator=torch.Generator().manual_seed(2))


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
    (found,) = torch.autograd.grad(flat(theta, fixed, x).square().sum(), theta)
    network.eval()
    network(x).square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters() if p.requires_grad])
    torch.testing.assert_close(found, expected)


def test_a_moved_vector_moves_the_network_with_it(case):
    network, x = case
    flat, theta, fixed = parts(network)
    other = theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.eval()
        torch.nn.utils.vector_to_parameters(other, [p for p in network.parameters() if p.requires_grad])
        torch.testing.assert_close(flat(other, fixed, x), network(x))


def test_the_vector_is_taken_apart_as_it_was_put_together(case):
    network, _ = case
    flat, theta, fixed = parts(network)
    assert flat.size == len(theta) == sum(flat.sizes)
    assert same_tensors(state_of(network), {**flat.unflatten(theta), **fixed})
    assert torch.equal(flat.vector(flat.unflatten(theta)), theta)


def test_a_module_made_from_a_vector_is_a_plain_network_of_its_own(case):
    network, x = case
    flat, theta, fixed = parts(network)
    made = flat.module(theta + 0.1, fixed)
    assert type(made) is type(network)
    assert not made.training
    torch.testing.assert_close(made(x), flat(theta + 0.1, fixed, x))
    trainable = {name: p.requires_grad for name, p in network.named_parameters()}
    assert {name: p.requires_grad for name, p in made.named_parameters()} == trainable
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert torch.equal(flat(theta, fixed, x), FlatNetwork(network)(theta, fixed, x))


def test_the_network_given_keeps_its_mode_and_its_gradients():
    network = odd()
    trainable = {name: p.requires_grad for name, p in network.named_parameters()}
    before = state_of(network)
    flat, theta, fixed = parts(network)
    flat(theta, fixed, torch.randn(3, 5))
    flat.module(theta + 1, fixed)
    assert network.training
    assert {name: p.requires_grad for name, p in network.named_parameters()} == trainable
    assert same_tensors(state_of(network), before)


def test_what_is_not_trained_is_fixed():
    flat, theta, fixed = parts(odd())
    assert set(flat.shapes) == {"first.weight", "first.bias", "norm.weight", "norm.bias", "scale"}
    assert set(fixed) == {"frozen", "kept", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert len(theta) == 25 + 5 + 5 + 5 + 1


def test_a_state_is_a_copy_and_loading_it_brings_the_network_back():
    network, x = odd().eval(), torch.randn(3, 5)
    state, before = state_of(network), network(x)
    with torch.no_grad():
        for tensor in (*network.parameters(), network.norm.running_mean, network.kept):
            tensor.add_(1)
    assert not torch.equal(network(x), before)
    load_state(network, state)
    assert torch.equal(network(x), before)
    assert network.last.weight is network.first.weight


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([torch.float32, torch.float64]), st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_inputs_take_the_precision_of_the_vector(network, inputs):
    flat, theta, fixed = parts(odd().to(network))
    assert flat(theta, fixed, torch.ones(2, 5, dtype=inputs)).dtype == network


def test_whole_number_inputs_stay_whole_numbers():
    network = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    flat, theta, fixed = parts(network)
    words = torch.tensor([[0, 3, 6]])
    assert torch.equal(flat(theta, fixed, words), network(words))


class Meeting(nn.Module):
    """A network whose forward pass waits inside until the test lets it go on."""

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
    """Which kernels torch may choose from for attention: flags of the whole process."""
    backends = torch.backends.cuda
    return backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled()


def test_threads_that_are_inside_one_network_at_once_do_not_see_each_others_parameters():
    """Both threads enter before either multiplies, and the one that entered first leaves first."""
    barrier, left = threading.Barrier(2), threading.Event()

    def wait():
        barrier.wait(60)
        if threading.current_thread().name == "last":
            left.wait(60)

    network, x, kernels = Meeting(wait), torch.eye(2), attention_kernels()
    flat, theta, fixed = parts(network)
    found = {}

    def ask(name, at):
        found[name] = flat(at, fixed, x).detach()
        left.set()

    threads = [
        threading.Thread(target=ask, args=(name, theta + shift), name=name)
        for name, shift in (("first", 1.0), ("last", 2.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, shift in (("first", 1.0), ("last", 2.0)):
        moved = flat.unflatten(theta + shift)
        assert torch.equal(found[name], F.linear(x, moved["layer.weight"], moved["layer.bias"])), name
    assert same_tensors(state_of(flat.network), state_of(network))
    assert attention_kernels() == kernels


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_while_a_thread_was_inside_answers_like_its_parent():
    inside, leave = threading.Event(), threading.Event()

    def wait():
        if threading.current_thread().name == "inside":
            inside.set()
            leave.wait(60)

    kernels = attention_kernels()
    flat, theta, fixed = parts(Meeting(wait))
    expected = flat(theta, fixed, torch.eye(2))
    thread = threading.Thread(target=flat, args=(theta + 1, fixed, torch.eye(2)), name="inside")
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is killed, and the test fails
        same = torch.equal(flat(theta, fixed, torch.eye(2)), expected) and attention_kernels() == kernels
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert status == 0
    assert attention_kernels() == kernels


def test_a_network_that_threads_have_used_can_be_pickled(case):
    network, x = case
    flat, theta, fixed = parts(network)
    expected = flat(theta, fixed, x)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert torch.equal(pickle.loads(dumps(flat))(theta, fixed, x), expected)


def test_copies_of_threads_share_the_parameters(case):
    network, x = case
    flat, theta, fixed = parts(network)
    flat(theta, fixed, x)
    shared = {tensor.data_ptr() for tensor in flat.network.parameters()}
    assert {tensor.data_ptr() for tensor in flat._skeleton().parameters()} == shared
