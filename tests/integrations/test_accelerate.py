"""A plain loop with Accelerate is recorded through its wrappers."""

import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import ddm
from ddm.networks.state import state_of

pytestmark = pytest.mark.slow  # importing Accelerate takes seconds


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def loop(network, optimizer, loader, accelerator=None, epochs=2):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward() if accelerator is None else accelerator.backward(loss)
            (nn.utils if accelerator is None else accelerator).clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


def recorded(prepare, accelerator=None):
    data = ddm.datasets.load("digits").train[:200]
    network, loader = build(), DataLoader(data, batch_size=20)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    network, optimizer, loader = prepare(network, optimizer, loader)
    with ddm.record(network, optimizer, every=10) as recorder:
        loop(network, optimizer, loader, accelerator)
    return recorder.target(), network, data


@pytest.fixture
def accelerate():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_a_prepared_loop_is_recorded_like_the_plain_one(accelerate):
    accelerator = accelerate.Accelerator(cpu=True)
    plain, *_ = recorded(lambda *parts: parts)
    target, network, _ = recorded(accelerator.prepare, accelerator)
    assert same_tensors(target.trajectory[-1], plain.trajectory[-1])
    assert same_tensors(target.trajectory[-1], state_of(network))
    assert target.trajectory.seen == plain.trajectory.seen
    assert target.trajectory.seen[-1].optimizer == "AdamW"


def test_mixed_precision_is_recorded_and_explained_in_full_precision(accelerate, bfloat16):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    target, network, data = recorded(accelerator.prepare, accelerator)
    x, _ = data.batch([0, 1, 2])
    with torch.no_grad():
        assert not torch.equal(network(x), target.network(x))
    full = build()
    ddm.networks.state.load_state(full, target.trajectory[-1])
    assert torch.equal(full(x), target.network(x))


@pytest.mark.parametrize("wrapper", ["data parallel", "compiled"])
def test_wrapped_networks_are_recorded_under_their_own_names(wrapper):
    network = build()
    wrapped = nn.DataParallel(network) if wrapper == "data parallel" else torch.compile(network, backend="eager")
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    data = ddm.datasets.load("digits").train[:60]
    with ddm.record(wrapped, optimizer) as recorder:
        loop(wrapped, optimizer, DataLoader(data, batch_size=20))
    target = recorder.target()
    assert same_tensors(target.trajectory[-1], state_of(network))
    assert list(target.flat.shapes) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert target.trajectory.cumulative_rates[-1] < 0.6  # clipped
