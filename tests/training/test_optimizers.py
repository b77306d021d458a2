"""The description of each optimizer agrees with the steps that torch makes."""

import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F

from ddm import Recipe, Samples, train
from ddm.training.optimizer_state import load_optimizer, optimizer_state
from ddm.training.optimizers import OPTIMIZERS, Optimizer, describing

GRADIENT = torch.tensor([0.1, 1.0, -10.0])


def samples():
    generator = torch.Generator().manual_seed(0)
    return Samples.from_arrays(torch.randn(24, 5, generator=generator), torch.arange(24) % 3)


def descend(parameter, optimizer, gradients):
    """Make a step with each gradient, and return how far the descriptions say that they move the parameter."""
    description, moved = describing(optimizer), torch.zeros_like(GRADIENT)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        (options,), state = optimizer.param_groups, optimizer.state[parameter]
        if not description.ignores_step(options, state):
            moment = description.moment(options, state)
            divisor = 1.0 if moment is None else (moment[0] * moment[1]).sqrt() + options["eps"]
            moved += description.rate(options, state) * gradient / divisor
    return moved


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "dampening"), [(0.0, 0.0), (0.5, 0.0), (0.9, 0.0), (0.9, 0.5)])
def test_a_gradient_moves_a_parameter_by_the_rate_of_sgd_now_and_in_later_steps(momentum, dampening, nesterov):
    if nesterov and (not momentum or dampening):
        pytest.skip("torch has no such SGD")
    parameter = nn.Parameter(torch.zeros(3))
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    buffer = torch.zeros(3)  # torch does not dampen the first gradient, so the second one is measured
    moved = descend(parameter, optimizer, [buffer, GRADIENT, *[torch.zeros(3)] * 400])
    torch.testing.assert_close(-parameter.detach(), moved)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Adam", {}),
        ("Adam", {"amsgrad": True}),
        ("Adam", {"eps": 0.5}),
        ("AdamW", {"weight_decay": 0.0}),
        ("RMSprop", {"alpha": 0.0}),
        ("RMSprop", {"alpha": 0.5, "centered": True, "eps": 1.0}),
        ("Adagrad", {}),
        ("Adagrad", {"lr_decay": 0.1}),
    ],
)
def test_a_constant_gradient_moves_a_parameter_as_described(kind, options):
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.01, **options)
    moved = descend(parameter, optimizer, [GRADIENT] * 20)
    torch.testing.assert_close(-parameter.detach(), moved)


@pytest.mark.parametrize("kind", ["NAdam", "RAdam"])
def test_optimizers_that_warm_up_move_a_parameter_as_described_in_the_long_run(kind):
    parameter = nn.Parameter(torch.zeros(3))
    moved = descend(parameter, getattr(torch.optim, kind)([parameter], lr=0.01), [GRADIENT / 100] * 400)
    torch.testing.assert_close(-parameter.detach(), moved, rtol=0.05, atol=0.0)


def test_momentum_of_rmsprop_repeats_each_step():
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.RMSprop([parameter], lr=0.01, momentum=0.9, alpha=0.0, eps=1.0)
    moved = descend(parameter, optimizer, [GRADIENT, *[torch.zeros(3)] * 400])
    torch.testing.assert_close(-parameter.detach(), moved)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_resumes_from_its_stored_state(name):
    recipe = Recipe(lr=0.1, optimizer=name)
    gradients = list(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))
    one, other = ({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.zeros(3))} for _ in range(2))
    optimizers = [OPTIMIZERS[name].build(list(named.values()), recipe) for named in (one, other)]

    def steps(named, optimizer, some):
        for gradient in some:
            for parameter in named.values():
                parameter.grad = gradient.clone()
            optimizer.step()

    steps(one, optimizers[0], gradients[:3])
    tensors = {key: tensor.clone() for key, tensor in optimizer_state(optimizers[0], one).items()}
    tensors["weight"] = torch.ones(1)
    load_optimizer(optimizers[1], other, OPTIMIZERS[name].stored, tensors)
    assert tensors.keys() == {"weight"}
    for key, parameter in other.items():
        parameter.data.copy_(one[key].detach())
    for named, optimizer in zip((one, other), optimizers, strict=True):
        steps(named, optimizer, gradients[3:])
    assert same_tensors(dict(one), dict(other))
    assert same_tensors(optimizer_state(optimizers[0], one), optimizer_state(optimizers[1], other))


class Halved(torch.optim.SGD):
    """An optimizer of the user's own: SGD whose steps are half as long as its learning rate says."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] /= 2
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 2


class Describes(Optimizer):
    kinds = (Halved,)
    stored = frozenset()

    @classmethod
    def rate(cls, options, state):
        return options["lr"] / 2


def test_a_new_optimizer_needs_one_entry_to_train_resume_and_be_recorded(monkeypatch, tmp_path):
    monkeypatch.setitem(OPTIMIZERS, "halved", Describes)
    recipe = Recipe(epochs=3, lr=0.01, batch_size=8, weight_decay=0.5, optimizer="halved")
    network, calls = nn.Linear(5, 3), iter(range(5))

    def fails_in_the_second_epoch(logits, labels):
        next(calls)  # raises StopIteration
        return F.cross_entropy(logits, labels)

    with pytest.raises(StopIteration):
        train(network, samples(), recipe, loss=fails_in_the_second_epoch, directory=tmp_path)
    target = train(network, samples(), recipe)
    resumed = train(network, samples(), recipe, directory=tmp_path)
    assert torch.equal(target.theta, resumed.theta)
    for one in (target, resumed):
        assert one.trajectory.cumulative_rates == pytest.approx([0.0, 0.015, 0.03, 0.045])


def test_an_optimizer_of_the_users_own_and_one_that_maximises_have_no_description():
    parameter = nn.Parameter(torch.zeros(3))
    assert describing(Halved([parameter], lr=0.1)) is None
    assert describing(torch.optim.SGD([parameter], lr=0.1, maximize=True)) is None
    assert describing(torch.optim.SGD([parameter], lr=0.1)) is OPTIMIZERS["sgd"]


def test_an_unknown_optimizer_is_refused_with_the_known_names(refused):
    with refused("optimizer 'lion'", *OPTIMIZERS):
        Recipe(optimizer="lion")
