"""Every built-in network trains with its default settings, and reads its shape and classes from the data."""

import math

import pytest
import torch
from torch.nn import functional as F

import ddm
from ddm import Recipe, Samples, networks

STEPS = 6


def colours():
    """Smooth 16 × 16 colour images of three classes, each with its own pattern: a stand-in for CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    patterns = torch.randn(3, 3, 4, 4, generator=generator)
    coarse = patterns[labels] + torch.randn(24, 3, 4, 4, generator=generator)
    images = F.interpolate(coarse, size=16, mode="bilinear")
    return Samples.from_arrays(images / images.std(), labels)


def fitting(name, samples):
    """The samples, with images as the rows of a table for a network that takes tables."""
    if networks.NETWORKS[name].inputs == "images":
        return samples
    x, labels = samples.batch()
    return Samples.from_arrays(x.flatten(1), labels)


def training_losses(name, samples):
    """The loss at each training step with default settings, with all samples in one batch."""
    losses = []

    def loss(logits, labels):
        value = F.cross_entropy(logits, labels)
        losses.append(value.item())
        return value

    ddm.train(name, fitting(name, samples), Recipe(epochs=STEPS), loss=loss)
    return losses


@pytest.mark.parametrize("name", [name for name in networks.names() if name != "text-transformer"])
@pytest.mark.parametrize(
    "data", [pytest.param("digits", id="digits"), pytest.param("colours", id="colours", marks=pytest.mark.slow)]
)
def test_every_network_learns_with_its_default_learning_rate(name, data, digits):
    losses = training_losses(name, digits.train[:32] if data == "digits" else colours())
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


def test_a_network_given_by_name_fits_the_shape_and_classes_of_the_data():
    options = {"width": 4, "depth": 1, "seed": 3}
    by_name = ddm.train("convnet", colours(), Recipe(epochs=1), options=options)
    built = ddm.train(networks.ConvNet((3, 16, 16), 3, **options), colours(), Recipe(epochs=1))
    assert by_name.fingerprint() == built.fingerprint()


def test_a_recipe_without_a_learning_rate_uses_the_default_of_the_network(digits):
    network = networks.AlexNet(digits.train.shape, 10, width=2)
    target = ddm.train(network, digits.train[:64], Recipe(epochs=1))
    assert target.recipe.lr == target.recipe.to_dict()["lr"] == networks.learning_rate("alexnet")
    assert target.recipe == Recipe(epochs=1, lr=networks.learning_rate(network))
    assert ddm.train(network, digits.train[:64], Recipe(epochs=1, lr=0.02)).recipe.lr == 0.02


def test_the_default_learning_rate_of_a_users_module_is_a_tenth(digits):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert ddm.train(network, digits.train[:64], Recipe(epochs=1)).recipe.lr == 0.1


def test_unknown_names_and_options_are_refused(digits, refused):
    with refused("convnet, alexnet"):
        ddm.train("lenet", digits.train)
    with refused("options of convnet", "dim"):
        ddm.train("convnet", digits.train, options={"dim": 3})
    with refused("options", "by its name"):
        ddm.train(networks.ConvNet(), digits.train, options={"width": 3})
    with refused("lr"):
        Recipe(lr=-1.0)
