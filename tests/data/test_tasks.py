"""Tasks: the loss says what outputs mean, and the loss of each sample is that of torch."""

import pickle

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.data.inputs import Inputs
from ddm.data.tasks import IGNORED, TASKS, Task, find_outputs, task_of


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("loss", "outputs", "kind"),
    [
        (F.cross_entropy, 3, "classification"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), 3, "classification"),
        (F.mse_loss, 1, "regression"),
        (nn.SmoothL1Loss(), 2, "regression"),
        (nn.BCEWithLogitsLoss(), 1, "binary"),
        (nn.BCEWithLogitsLoss(), 4, "multilabel"),
        (lambda f, y: (f - y).square().mean(), 1, "classification"),
    ],
)
def test_the_loss_says_what_the_outputs_mean(loss, outputs, kind):
    assert task_of(loss, outputs).kind == kind


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_has_a_usual_loss_with_a_name_and_survives_pickling(kind):
    task = pickle.loads(pickle.dumps(Task(kind)))
    assert task.kind == kind
    assert not task.loss.name.startswith("own ")


def test_an_unknown_task_is_refused():
    with refused("no task 'ranking'", "regression"):
        Task("ranking")


def data(kind, generator):
    """Outputs as a network returns them, labels, and the loss of each sample by torch."""
    if kind == "binary":
        f, y = torch.randn(6, 1, generator=generator), torch.tensor([0, 1, 1, 0, 1, 0])
        return f, y, F.binary_cross_entropy_with_logits(f[:, 0], y.float(), reduction="none")
    if kind == "multilabel":
        f, y = torch.randn(6, 3, generator=generator), torch.randint(0, 2, (6, 3), generator=generator).float()
        return f, y, F.binary_cross_entropy_with_logits(f, y, reduction="none").mean(1)
    if kind == "regression":
        f, y = torch.randn(6, generator=generator), torch.randn(6, generator=generator)
        return f, y, (f - y).square()
    if kind == "tokens":
        f, y = torch.randn(6, 5, 4, generator=generator), torch.randint(0, 4, (6, 5), generator=generator)
        y[0, 2:], y[3, :4] = IGNORED, IGNORED
        each = F.cross_entropy(f.flatten(0, 1), y.flatten(), reduction="none").view(6, 5)
        return f, y, each.sum(1) / (y != IGNORED).sum(1)
    if kind == "pixels":
        f, y = torch.randn(6, 4, 2, 3, generator=generator), torch.randint(0, 4, (6, 2, 3), generator=generator)
        return f, y, F.cross_entropy(f, y, reduction="none").mean((1, 2))
    f, y = torch.randn(6, 3, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    return f, y, F.cross_entropy(f, y, reduction="none")


@pytest.mark.parametrize("kind", TASKS)
def test_losses_of_samples_are_torchs(kind, generator):
    task, (found, y, expected) = Task(kind), data(kind, generator)
    outputs = task.shaped(found)
    assert outputs.dim() == 2
    assert torch.allclose(task.loss.each(outputs, y), expected)
    assert torch.allclose(task.loss(outputs, y), expected.mean())


@pytest.mark.parametrize("kind", TASKS)
def test_minus_the_slope_of_the_loss_is_label_minus_mean(kind, generator):
    """The step of a synset has the residual q − mean(f): its loss must have the link that the task names."""
    task, (found, y, _) = Task(kind), data(kind, generator)
    outputs = task.shaped(found).double().requires_grad_()
    (slopes,) = torch.autograd.grad(task.loss.each(outputs, y).sum(), outputs)
    scale = {"regression": 2.0, "multilabel": 1 / 3}.get(kind, 1.0)
    if task.by_position:
        scale = task.weights(y)[..., None].expand(*y.flatten(1).shape, 4).flatten(1)
        wanted = F.one_hot(y.flatten(1).clamp(min=0), 4).double().flatten(1)
    elif task.has_classes:
        wanted = F.one_hot(y, outputs.shape[1]).double()
    else:
        wanted = y.double().view(outputs.shape)
    assert torch.allclose(-slopes, scale * (wanted - task.mean(outputs)).detach())


def test_a_single_logit_is_a_task_of_two_classes(generator):
    task, f = Task("binary"), torch.randn(5, generator=generator)
    assert torch.allclose(task.mean(task.shaped(f))[:, 1], f.sigmoid())
    weighted = task_of(nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)))
    y = torch.tensor([0, 1, 1, 0, 1])
    expected = F.binary_cross_entropy_with_logits(f, y.float(), pos_weight=torch.tensor(3.0), reduction="none")
    assert torch.allclose(weighted.loss.each(weighted.shaped(f), y), expected)


def test_logits_are_found_in_what_networks_of_transformers_return():
    logits = torch.rand(2, 3)
    assert find_outputs({"loss": torch.rand(1), "logits": logits}) is logits
    with refused("returns a tuple", "Task of your own"):
        find_outputs((logits,))


class Ranked(Task):
    """Predicts a number, but only its order counts."""

    kind = "regression"

    def outputs(self, network, inputs):
        """The second of two results ``(b, 1)``."""
        return network(inputs.tree["a"], inputs.tree["b"])[1]

    def losses(self, outputs, labels):
        """A hinge for each sample ``(b,)``."""
        return (1 - outputs[:, 0] * labels).clamp(min=0)


def test_a_task_of_the_users_own_picks_outputs_and_losses():
    class Pair(nn.Module):
        def forward(self, a, b):
            return a, (a * b).sum(1, keepdim=True)

    task, x = Ranked(), Inputs({"a": torch.ones(3, 2), "b": torch.tensor([[1.0, 0], [0, -3], [0, 0]])})
    outputs = task.outputs(Pair(), x)
    assert task.loss.each(outputs, torch.ones(3)).tolist() == [0, 4, 1]
    assert task.loss.name == "own Ranked"
    assert pickle.loads(pickle.dumps(task)).loss.each(outputs, torch.ones(3)).tolist() == [0, 4, 1]


@pytest.mark.parametrize(
    ("kind", "labels", "words"),
    [
        ("regression", [[1.0, 2.0], [3.0, 4.0]], "one number"),
        ("regression", [1.0, float("nan")], "finite"),
        ("multilabel", [[0.0, 2.0], [1.0, 0.0]], "0 or 1"),
        ("multilabel", [[0.0], [1.0]], "2 outputs"),
        ("tokens", [[0, 1], [2, -1]], "class from 0"),
        ("classification", [0.0, 0.5], "'regression'"),
    ],
)
def test_labels_of_another_kind_are_refused(kind, labels, words):
    names = {"regression": ["price"], "multilabel": ["red", "large"], "tokens": ["a", "b", "c"]}.get(kind)
    with refused(words):
        ddm.Samples.from_arrays(torch.rand(2, 3), torch.tensor(labels), names, task=kind)
