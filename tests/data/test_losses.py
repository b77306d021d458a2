"""The loss of each sample, from torch's losses and from losses of the user's own."""

import functools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ddm.data.losses import SampleLoss, sample_loss

OUTPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 1, 1])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])
SINGLE = F.cross_entropy(OUTPUTS, LABELS, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        functools.partial(F.cross_entropy, reduction="sum"),
        functools.partial(F.cross_entropy, reduction="none"),
    ],
)
def test_plain_cross_entropy_is_recognised_whatever_its_reduction(loss):
    found = sample_loss(loss)
    assert found.is_cross_entropy
    torch.testing.assert_close(found.each(OUTPUTS, LABELS), SINGLE)
    torch.testing.assert_close(found(OUTPUTS, LABELS), SINGLE.mean())


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (nn.CrossEntropyLoss(weight=WEIGHTS), WEIGHTS[LABELS] * SINGLE),
        (functools.partial(F.cross_entropy, weight=WEIGHTS), WEIGHTS[LABELS] * SINGLE),
        (
            nn.CrossEntropyLoss(label_smoothing=0.2, reduction="sum"),
            F.cross_entropy(OUTPUTS, LABELS, label_smoothing=0.2, reduction="none"),
        ),
        (nn.MultiMarginLoss(), F.multi_margin_loss(OUTPUTS, LABELS, reduction="none")),
        (F.multi_margin_loss, F.multi_margin_loss(OUTPUTS, LABELS, reduction="none")),
        (lambda f, y: 2 * F.cross_entropy(f, y), 2 * SINGLE),
        (lambda f, y: F.cross_entropy(f, y, reduction="sum"), SINGLE),
        (lambda f, y: F.cross_entropy(f, y, reduction="none"), SINGLE),
    ],
)
def test_a_loss_is_taken_apart_by_sample(loss, expected):
    found = sample_loss(loss)
    assert not found.is_cross_entropy
    torch.testing.assert_close(found.each(OUTPUTS, LABELS), expected)


def test_the_squared_loss_is_averaged_over_the_outputs_of_a_sample():
    targets = torch.ones_like(OUTPUTS)
    expected = (OUTPUTS - 1).square().mean(1)
    for loss in (nn.MSELoss(), nn.MSELoss(reduction="sum"), F.mse_loss):
        torch.testing.assert_close(sample_loss(loss).each(OUTPUTS, targets), expected)


def test_a_loss_that_branches_on_values_is_called_sample_by_sample():
    def hinge(outputs, labels):
        value = F.cross_entropy(outputs, labels)
        return value if float(value) > 1 else value / 2

    expected = torch.where(SINGLE > 1, SINGLE, SINGLE / 2)
    torch.testing.assert_close(sample_loss(hinge).each(OUTPUTS, LABELS), expected)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (F.cross_entropy, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum"),
        (lambda f, y: F.cross_entropy(f, y, label_smoothing=0.1), "mean"),
        (lambda f, y: F.cross_entropy(f, y, reduction="none"), "mean"),
        (lambda f, y: F.cross_entropy(f, y, reduction="sum"), "sum"),
        (lambda f, y: F.cross_entropy(f, y, weight=WEIGHTS), None),
        (lambda f, y: F.cross_entropy(f, y) + f.var(0).sum(), None),
    ],
)
def test_the_reduction_of_a_loss_is_tested_on_a_batch(loss, expected):
    assert sample_loss(loss).reduction(OUTPUTS, LABELS) == expected


@pytest.mark.parametrize("value", [torch.tensor(1.0), torch.ones(3)])
def test_a_loss_without_one_value_for_each_sample_is_refused(value, refused):
    with refused("6 samples", "for each sample"):
        SampleLoss(F.cross_entropy, lambda outputs, labels: value, "own").each(OUTPUTS, LABELS)


def test_losses_of_torch_survive_pickling():
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(weight=WEIGHTS)):
        found = pickle.loads(pickle.dumps(sample_loss(loss)))
        torch.testing.assert_close(found.each(OUTPUTS, LABELS), sample_loss(loss).each(OUTPUTS, LABELS))
