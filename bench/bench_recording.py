"""How much longer does a training take if it is recorded? Compare the two rows of a case, on one CPU thread."""

import contextlib

import pytest
import torch
from torch.nn import functional as F

import ddm

CASES = {
    "convnet 8×8, 3 k, sgd": ((1, 8, 8), {"width": 16, "depth": 2}, torch.optim.SGD, 100),
    "convnet 8×8, 3 k, adam": ((1, 8, 8), {"width": 16, "depth": 2}, torch.optim.Adam, 100),
    "convnet 28×28, 4 k, adam": ((1, 28, 28), {"width": 16, "depth": 2}, torch.optim.Adam, 40),
    "convnet 32×32, 320 k, adam": ((3, 32, 32), {"width": 128}, torch.optim.Adam, 5),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("case", CASES)
def bench_training(benchmark, case, recorded):
    shape, options, kind, steps = CASES[case]
    torch.set_num_threads(1)
    benchmark.group = case
    model = ddm.networks.build("convnet", shape, 10, **options)
    optimizer = kind(model.parameters(), lr=0.001)
    x, y = torch.randn(64, *shape), torch.arange(64) % 10

    def training():
        with ddm.record(model, optimizer, every=steps) if recorded else contextlib.nullcontext():
            for _ in range(steps):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    benchmark.pedantic(training, rounds=15, warmup_rounds=2)
