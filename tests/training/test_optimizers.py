"""Optimizers resume from their stored state, and their effective learning rates are how far steps move parameters."""

import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F

from ddm import Recipe, Samples, train
from ddm.curvature.damping import parameter_damping
from ddm.training.optimizers import OPTIMIZERS, Adam


class AdamW(Adam):
    """Adam with decoupled weight decay, which shrinks the parameters and so the effect of earlier steps."""

    @staticmethod
    def build(parameters, recipe):
        return torch.optim.AdamW(parameters, recipe.rate, weight_decay=recipe.weight_decay)

    def add_rate(self, lr):
        for rates in self.parameter_rates.values():
            rates *= 1 - lr * self.recipe.weight_decay
        super().add_rate(lr)

    @classmethod
    def with_decay(cls, damping, recipe):
        return damping


@pytest.fixture
def adamw(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "adamw", AdamW)


def samples():
    generator = torch.Generator().manual_seed(0)
    return Samples.from_arrays(torch.randn(24, 5, generator=generator), torch.arange(24) % 3)


def parameters(recipe, seed=0):
    """Two parameters, and the optimizer that a recipe gives them."""
    generator = torch.Generator().manual_seed(seed)
    named = {name: nn.Parameter(torch.randn(3, generator=generator)) for name in ("a", "b")}
    return named, OPTIMIZERS[recipe.optimizer](named, recipe)


def descend(named, optimizer, gradients, lr):
    for gradient in gradients:
        for parameter in named.values():
            parameter.grad = gradient.clone()
        optimizer.step(lr)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_a_gradient_moves_a_parameter_by_the_effective_learning_rate_of_sgd(momentum):
    named, optimizer = parameters(Recipe(lr=0.1, momentum=momentum))
    before = named["a"].detach().clone()
    descend(named, optimizer, [torch.ones(3), *[torch.zeros(3)] * 300], 0.1)
    rate = OPTIMIZERS["sgd"].effective_rate(optimizer.recipe, 0.1)
    torch.testing.assert_close(before - named["a"].detach(), torch.full((3,), rate))


def test_a_constant_gradient_moves_a_parameter_by_the_sum_of_adams_effective_learning_rates():
    named, optimizer = parameters(Recipe(lr=0.01, optimizer="adam"))
    before, gradient = named["a"].detach().clone(), torch.tensor([0.1, 1.0, -10.0])
    descend(named, optimizer, [gradient] * 20, 0.01)
    torch.testing.assert_close(before - named["a"].detach(), optimizer.parameter_rates["a"] * gradient)


@pytest.mark.parametrize("recipe", [Recipe(lr=0.1, momentum=0.9), Recipe(lr=0.1, optimizer="adam")])
def test_an_optimizer_resumes_from_its_stored_state(recipe):
    gradients = list(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))
    named, optimizer = parameters(recipe)
    descend(named, optimizer, gradients[:3], 0.1)
    others, resumed = parameters(recipe, seed=1)
    for name, parameter in others.items():
        parameter.data.copy_(named[name].detach())
    tensors = {name: tensor.clone() for name, tensor in optimizer.state().items()} | {"weight": torch.ones(1)}
    resumed.load(tensors)
    assert tensors.keys() == {"weight"}
    for one, how in ((named, optimizer), (others, resumed)):
        descend(one, how, gradients[3:], 0.1)
    assert same_tensors(dict(named), dict(others))
    assert same_tensors(optimizer.state(), resumed.state())


@pytest.mark.usefixtures("adamw")
def test_a_new_optimizer_needs_one_entry_to_train_resume_and_set_the_damping(tmp_path):
    recipe = Recipe(epochs=3, lr=0.01, batch_size=8, weight_decay=0.5, optimizer="adamw")
    network, calls = nn.Linear(5, 3), iter(range(5))

    def fails_in_the_second_epoch(logits, labels):
        next(calls)  # raises StopIteration
        return F.cross_entropy(logits, labels)

    with pytest.raises(StopIteration):
        train(network, samples(), recipe, loss=fails_in_the_second_epoch, directory=tmp_path)
    target = train(network, samples(), recipe)
    resumed = train(network, samples(), recipe, directory=tmp_path)
    assert torch.equal(target.theta, resumed.theta)
    rates = torch.cat([rates.flatten() for rates in resumed.trajectory.parameter_rates.values()])
    torch.testing.assert_close(parameter_damping(target, samples()), 1 / rates)


def test_an_unknown_optimizer_is_refused_with_the_known_names(refused):
    with refused("optimizer 'rmsprop'", *OPTIMIZERS):
        Recipe(optimizer="rmsprop")
