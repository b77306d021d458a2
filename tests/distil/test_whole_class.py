"""Whole classes: the log-odds that a training without a class reaches, and the shift of its output's bias."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.curvature.step_weights import StepWeights
from ddm.distil import Settings, distil
from ddm.distil.response.whole_class import ClassOutputs, output_biases
from ddm.groups.partition import sequential


class Biases(nn.Module):
    """A network whose outputs are biases alone, whatever the input."""

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x):
        return self.bias.expand(len(x), -1)


def class_outputs(target, samples):
    checkpoints = range(len(target.trajectory))
    return ClassOutputs(target, samples, StepWeights(target, checkpoints, samples).damping(target))


def descend(network, x, y, steps, lr):
    """The target that gradient descent on all samples gives."""
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    with ddm.record(network, optimizer, every=steps) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    return recorder.target()


@pytest.fixture(scope="module")
def uninformative():
    """Samples of four classes, whose inputs carry no information."""
    x, y = torch.arange(80.0)[:, None] // 4, torch.arange(80) % 4
    return x, y, ddm.Samples.from_dataset(torch.utils.data.TensorDataset(x, y))


@pytest.fixture(scope="module")
def outputs(target, digits):
    return class_outputs(target, digits.train)


@pytest.mark.parametrize("steps", [100, 1000, 10_000])
def test_biases_alone_reach_the_log_odds_of_a_training_without_the_class(uninformative, steps):
    x, y, samples = uninformative
    target, without = (descend(Biases(4), x[rows], y[rows], steps, 0.5) for rows in (y >= 0, y != 2))
    logits = without.outputs(x[:1])[0]
    true = logits[2] - logits[[0, 1, 3]].logsumexp(0)
    found = class_outputs(target, samples).final_log_odds(2)
    # p < 1/4 pushes the class down more slowly than the formula's exp(a), and the other outputs move too
    assert abs(float(found - true)) < 1


def test_a_closed_class_has_the_log_odds_of_a_training_without_it(outputs, target, digits):
    x, y = digits.train.batch()
    (shift,) = outputs.close(torch.zeros(1, target.flat.size), [3])
    logits = target.flat(target.theta + shift, target.fixed, x[y == 3])
    others = logits[:, np.arange(10) != 3].logsumexp(1)
    torch.testing.assert_close((logits[:, 3] - others).mean(), outputs.final_log_odds(3), rtol=1e-3, atol=1e-3)


def test_closing_a_class_changes_no_other_output(outputs, target, digits):
    x, _ = digits.test.batch()
    (shift,) = outputs.close(torch.zeros(1, target.flat.size), [3])
    change = target.flat(target.theta + shift, target.fixed, x) - target.outputs(x)
    assert change[:, 3].max() < -1
    torch.testing.assert_close(change[:, np.arange(10) != 3], torch.zeros(len(x), 9))


def test_a_class_that_the_response_has_closed_is_left_alone(outputs, target):
    (closed,) = outputs.close(torch.zeros(1, target.flat.size), [3])
    (again,) = outputs.close(2 * closed[None], [3])
    assert torch.equal(again, 2 * closed)


def test_the_bias_of_the_outputs_is_found_by_its_effect_and_not_by_its_shape(digits):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoy = nn.Parameter(torch.zeros(10))
            self.body, self.head = nn.Linear(64, 10), nn.Linear(10, 10)

        def forward(self, x):
            return self.head((self.body(x.flatten(1)) + self.decoy).tanh()).log_softmax(1)

    target = descend(Network(), *digits.train.batch(), steps=1, lr=0.1)
    positions = output_biases(target, digits.train.batch(slice(0, 4))[0])
    assert torch.equal(target.theta[positions], target.network.head.bias)


def test_a_network_without_biases_of_its_outputs_leaves_classes_to_their_responses(digits):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    target = descend(network, *digits.train.batch(), steps=1, lr=0.1)
    outputs = class_outputs(target, digits.train)
    response = torch.ones(1, target.flat.size)
    assert torch.equal(outputs.close(response, [3]), response)
    with pytest.warns(UserWarning, match="no bias for each output"):
        distil(target, digits.train, sequential(digits.train, 2), Settings(curvature=64, checkpoints=2, bank=8))
