"""The network for tables."""

import torch
from torch import nn
from torch.nn import functional as F

from ddm.networks import MLP


def test_the_number_and_width_of_hidden_layers_are_options():
    linear = [module for module in MLP((5,), 3, width=7, depth=3).modules() if isinstance(module, nn.Linear)]
    assert [(one.in_features, one.out_features) for one in linear] == [(5, 7), (7, 7), (7, 7), (7, 3)]


def test_units_are_dropped_only_in_training():
    network, x = MLP((5,), 3, dropout=0.5), torch.randn(4, 5)
    torch.testing.assert_close(network.eval()(x), MLP((5,), 3)(x))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = network.train().features(x) == 0
    assert dropped.sum() > (network.eval().features(x) == 0).sum()


def test_a_regression_has_one_output_and_learns_with_the_default_learning_rate():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=rng)
    y = x[:, 0] - x[:, 1].abs()
    network = MLP((6,), 1)
    optimizer = torch.optim.SGD(network.parameters(), network.learning_rate)
    losses = []
    for _ in range(60):
        loss = F.mse_loss(network(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * y.var()
