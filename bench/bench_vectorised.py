"""When is one vectorised call for all groups faster than a loop over them, on one CPU thread?

The results set two thresholds: of parameters for matching gradients, and of inputs for counterfactual models.
"""

import pytest
import torch
from torch.func import vmap

import ddm
from ddm.distil.synset_gradients import synset_gradients

CASES = {
    "convnet 8×8, 19 k": ("convnet", (1, 8, 8), {}),
    "simplevit 32×32, 203 k": ("simplevit", (3, 32, 32), {}),
    "convnet 32×32, 320 k": ("convnet", (3, 32, 32), {"width": 128}),
    "alexnet 32×32, 1.9 M": ("alexnet", (3, 32, 32), {}),
}
GROUPS = 10


@pytest.fixture(scope="module", params=CASES)
def target(request):
    torch.set_num_threads(1)
    name, shape, options = CASES[request.param]
    recorder = ddm.Recorder(ddm.networks.build(name, shape, 10, **options))
    recorder.snapshot()
    return recorder.target(), shape


@pytest.mark.benchmark(group="matching gradient of 10 groups")
@pytest.mark.parametrize("vectorised", [True, False], ids=["vectorised", "loop"])
def bench_matching(benchmark, target, vectorised):
    network, shape = target
    images = torch.randn(GROUPS, 1, *shape, requires_grad=True)
    targets = torch.randn(GROUPS, 1, 10).softmax(-1)

    def step():
        gradients = synset_gradients(
            network, network.theta, network.fixed, images, targets, hard=False, vectorised=vectorised
        )
        return torch.autograd.grad(gradients.square().sum(), images)[0]

    assert benchmark(step).shape == images.shape


@pytest.mark.benchmark(group="forward pass of 10 models")
@pytest.mark.parametrize("inputs", [1, 4, 16])
@pytest.mark.parametrize("vectorised", [True, False], ids=["vectorised", "loop"])
def bench_forward(benchmark, target, inputs, vectorised):
    network, shape = target
    models, x = network.theta.repeat(GROUPS, 1), torch.randn(inputs, *shape)

    def logits(theta):
        return network.flat(theta, network.fixed, x)

    def forward():
        with torch.no_grad():
            return vmap(logits)(models) if vectorised else torch.stack([logits(theta) for theta in models])

    assert benchmark(forward).shape == (GROUPS, inputs, 10)
