"""A recorder sees the optimizer, the gradients and the loss of any training loop."""

import contextlib
import copy
import math
import warnings

import numpy as np
import pytest
import torch
from tensor_dicts import same_tensors
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ddm
from ddm.distil import Settings
from ddm.distil.response.solve import Responses
from ddm.training.loop import _epoch_seed
from ddm.training.optimizers import OPTIMIZERS
from ddm.training.recorder import _MAX_AUTOMATIC

BATCH, EPOCHS = 20, 3


@pytest.fixture(scope="module")
def samples():
    return ddm.datasets.load("digits").train[:200]


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def batches(samples, epochs=EPOCHS):
    """The batches of ``ddm.train`` with seed 0."""
    for epoch in range(epochs):
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_epoch_seed(0, epoch)))
        for rows in order.split(BATCH):
            yield samples.batch(rows)


def loop(model, optimizer, samples, loss=F.cross_entropy, after_backward=lambda: None, after_step=lambda: None):
    for x, y in batches(samples):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        after_backward()
        optimizer.step()
        after_step()


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def rate_of(target, name="3.weight"):
    """Σ of the learning rates that were recorded for one tensor."""
    return sum(steps.tensors[name].rate for steps in target.trajectory.seen[1:])


# --- the same as ddm.train ---


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recorded_loop_and_train_give_the_same_checkpoints_and_responses(name, samples):
    recipe = ddm.Recipe(epochs=EPOCHS, lr=0.005, batch_size=BATCH, weight_decay=0.01, optimizer=name)
    trained = ddm.train(build(), samples, recipe)
    model = build()
    kind = OPTIMIZERS[name].kinds[0]
    optimizer = kind(model.parameters(), lr=0.005, weight_decay=0.01)
    with ddm.record(model, optimizer, every=len(samples) // BATCH) as recorder:
        loop(model, optimizer, samples)
    recorded = recorder.target()
    assert recorded.trajectory.steps == trained.trajectory.steps
    assert recorded.trajectory.seen == trained.trajectory.seen
    assert all(same_tensors(*pair) for pair in zip(recorded.trajectory, trained.trajectory, strict=True))
    groups = [np.arange(start, start + 40) for start in (0, 100)]
    one, other = (Responses(target, samples, Settings(curvature=200)) for target in (trained, recorded))
    torch.testing.assert_close(
        one.curvature.solve(one.pulls(groups)), other.curvature.solve(other.pulls(groups)), rtol=1e-4, atol=1e-7
    )


# --- what the optimizer did ---


def test_the_moments_of_the_inputs_are_those_of_all_samples(samples):
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
        model(samples.batch()[0] + 100)  # without a backward pass it is no training
    seen, (x, _) = recorder.target().inputs, samples.batch()
    assert seen.mean == pytest.approx(float(x.mean()), abs=1e-5)
    assert seen.deviation == pytest.approx(float(x.std(correction=0)), rel=1e-5)


def test_a_network_without_real_inputs_has_no_moments_of_inputs(samples):
    model = nn.Sequential(nn.Embedding(10, 10))
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        F.cross_entropy(model(samples.labels), samples.labels).backward()
        optimizer.step()
    assert recorder.target().inputs is None


def test_a_schedule_is_seen(samples):
    model = build()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    with ddm.record(model, optimizer, every=10) as recorder:
        loop(model, optimizer, samples, after_step=schedule.step)
    rates = [0.1 * 0.5 * (1 + math.cos(math.pi * step / 30)) for step in range(30)]
    expected = np.concatenate([[0.0], np.cumsum(rates)[9::10]])
    assert recorder.target().trajectory.cumulative_rates == pytest.approx(expected.tolist())


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_seen(nesterov, samples):
    model = build()
    optimizer = sgd(model, lr=0.01, momentum=0.9, nesterov=nesterov)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    assert rate_of(recorder.target()) == pytest.approx(30 * 0.01 / 0.1)


def test_each_group_of_parameters_has_its_own_rate_and_decay(samples):
    model = build()
    groups = [
        {"params": model[1].parameters(), "lr": 0.01, "weight_decay": 0.0},
        {"params": model[3].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.5)
    with ddm.record(model, optimizer, every=30) as recorder:
        loop(model, optimizer, samples)
    (seen,) = recorder.target().trajectory.seen[1:]
    first, last = seen.tensors["1.weight"], seen.tensors["3.bias"]
    assert (first.rate, first.decoupled, first.coupled) == pytest.approx((0.3, 0.0, 0.0))
    assert (last.rate, last.decoupled, last.coupled) == pytest.approx((3.0, 1.5, 0.0))
    assert seen.optimizer == "AdamW"


@pytest.mark.parametrize("how", ["left out of the optimizer", "requires_grad"])
def test_frozen_parameters_are_not_part_of_the_target(how, samples):
    model = build()
    if how == "requires_grad":
        model[1].requires_grad_(False)
        optimizer = sgd(model)
    else:
        optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    assert list(recorder.target().flat.shapes) == ["3.weight", "3.bias"]


def test_a_layer_that_is_unfrozen_later_has_steps_only_from_then_on(samples):
    model = build()
    model[1].requires_grad_(False)
    optimizer, steps = sgd(model), iter(range(30))

    def unfreeze():
        if next(steps) == 9:
            model[1].requires_grad_(True)

    with ddm.record(model, optimizer, every=10) as recorder:
        loop(model, optimizer, samples, after_step=unfreeze)
    target = recorder.target()
    assert "1.weight" not in target.trajectory.seen[1].tensors
    assert [target.trajectory.seen[t].tensors["1.weight"].count for t in (2, 3)] == [10, 10]
    assert set(target.flat.shapes) == {"1.weight", "1.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_clipping_shortens_the_steps(limit, samples):
    model = build()
    optimizer, factors = sgd(model), []

    def clip():
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
        factors.append(min(1.0, limit / (norm + 1e-6)))

    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, after_backward=clip)
    assert rate_of(recorder.target()) == pytest.approx(0.1 * sum(factors), rel=1e-4)
    assert (min(factors) < 1) == (limit < 1)


def test_clipping_in_the_closure_of_a_step_is_seen(samples):
    """As Lightning computes and clips its gradients."""
    model = build()
    optimizer, factors = sgd(model), []

    def closure(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        factors.append(min(1.0, 0.1 / (norm + 1e-6)))

    with ddm.record(model, optimizer) as recorder:
        for x, y in batches(samples):
            optimizer.step(lambda x=x, y=y: closure(x, y))
    assert rate_of(recorder.target()) == pytest.approx(0.1 * sum(factors), rel=1e-4)
    assert min(factors) < 1


def test_a_target_can_be_made_twice(samples):
    loss = nn.CrossEntropyLoss(reduction="sum")
    model = build()
    optimizer = sgd(model, lr=0.1 / BATCH)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, loss)
    recorder.target(loss)
    assert rate_of(recorder.target(loss)) == pytest.approx(30 * 0.1, rel=1e-4)


def test_clipping_that_begins_later_in_a_training_is_seen(samples):
    model = build()
    optimizer, factors = sgd(model), []

    def clip():
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        factors.append(1.0 if len(factors) < 15 else 0.1 / norm)
        if factors[-1] < 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, after_backward=clip)
    assert rate_of(recorder.target()) == pytest.approx(0.1 * sum(factors), rel=1e-4)


# --- what the loss was ---


def test_a_sum_over_the_batch_multiplies_the_rate_by_the_batch_size(samples):
    loss = nn.CrossEntropyLoss(reduction="sum")
    model = build()
    optimizer = sgd(model, lr=0.1 / BATCH)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, loss)
    assert rate_of(recorder.target(loss)) == pytest.approx(30 * 0.1, rel=1e-4)


@pytest.mark.parametrize("divided", [True, False])
def test_gradients_accumulated_over_batches_are_in_units_of_the_mean_over_all_of_them(divided, samples):
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        for number, (x, y) in enumerate(batches(samples)):
            loss = F.cross_entropy(model(x), y)
            (loss / 5 if divided else loss).backward()
            if number % 5 == 4:
                optimizer.step()
                optimizer.zero_grad()
    target = recorder.target()
    assert target.trajectory.steps[-1] == 6
    assert rate_of(target) == pytest.approx(6 * 0.1 * (1 if divided else 5), rel=1e-4)


def test_a_second_backward_pass_with_new_gradients_is_not_accumulation(samples):
    """As sharpness-aware training does: it looks at the gradient, moves, and uses the gradient there."""
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        for x, y in batches(samples):
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert rate_of(recorder.target()) == pytest.approx(30 * 0.1, rel=1e-4)


def test_the_scaling_of_mixed_precision_cancels_out(samples):
    model = build()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with ddm.record(model, optimizer) as recorder:
        for x, y in batches(samples):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert rate_of(recorder.target()) == pytest.approx(30 * 0.1, rel=1e-4)


def test_class_weights_are_in_units_of_the_mean_over_samples(samples):
    weight = torch.linspace(0.5, 4.0, 10)
    loss = nn.CrossEntropyLoss(weight=weight)
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer, every=1) as recorder:
        loop(model, optimizer, samples, loss)
    target = recorder.target(loss)
    mean = float(weight[samples.labels].mean())
    assert rate_of(target) == pytest.approx(30 * 0.1 / mean, rel=0.03)  # each batch has a mean weight of its own


def smooth(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.1)


def weighted(outputs, labels):
    return F.cross_entropy(outputs, labels, weight=torch.linspace(0.2, 3.0, 10))


def mixed(outputs, labels):
    return 0.6 * F.cross_entropy(outputs, labels) + 0.4 * F.cross_entropy(outputs, labels.flip(0))


@pytest.mark.parametrize(
    ("loss", "words"),
    [(smooth, "label smoothing of about 0.1"), (weighted, "weights for the classes"), (mixed, "mixup")],
)
def test_a_loss_that_the_training_did_not_use_is_reported(loss, words, samples):
    model = build()
    optimizer = sgd(model, lr=0.3)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, loss)
    with pytest.warns(UserWarning, match=words):
        recorder.target()


@pytest.mark.parametrize("loss", [smooth, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_the_right_loss_is_not_reported(loss, samples):
    model = build()
    optimizer = sgd(model, lr=0.3)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, loss)
    assert rate_of(recorder.target(loss)) == pytest.approx(30 * 0.3, rel=1e-3)


def test_bfloat16_is_not_taken_for_another_loss(samples, bfloat16):
    model = build()
    optimizer = sgd(model, lr=0.3)
    with ddm.record(model, optimizer) as recorder:
        for x, y in batches(samples):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    assert rate_of(recorder.target()) == pytest.approx(30 * 0.3, rel=0.02)


# --- when checkpoints are taken ---


@pytest.mark.parametrize("steps", [1, 5, 31, 32, 33, 200])
def test_automatic_checkpoints_are_evenly_spaced_whatever_the_number_of_steps(steps):
    model = nn.Linear(2, 2)
    optimizer = sgd(model, lr=0.01)
    with ddm.record(model, optimizer) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 2)), torch.arange(4) % 2).backward()
            optimizer.step()
    trajectory = recorder.target().trajectory
    gaps = np.diff(trajectory.steps)
    assert trajectory.steps[0] == 0
    assert trajectory.steps[-1] == steps
    assert len(set(gaps[:-1])) <= 1
    assert min(steps, _MAX_AUTOMATIC // 2) <= len(gaps) <= _MAX_AUTOMATIC + 1
    assert same_tensors(trajectory[-1], dict(model.state_dict()))
    assert trajectory.cumulative_rates[-1] == pytest.approx(0.01 * steps)


def test_steps_after_the_last_snapshot_belong_to_the_target(samples):
    model = build()
    optimizer = sgd(model)
    recorder = ddm.Recorder(model, optimizer)
    for _ in range(2):
        loop(model, optimizer, samples)
        if not recorder.trajectory.steps[-1]:
            recorder.snapshot()
    target = recorder.target()
    assert target.trajectory.steps == [0, 30, 60]
    assert same_tensors(target.trajectory[-1], dict(model.state_dict()))


def test_training_after_the_last_snapshot_belongs_to_the_target_without_an_optimizer_too(samples):
    model = build()
    recorder = ddm.Recorder(model)
    for _ in range(2):
        loop(model, sgd(model), samples)
        if len(recorder.trajectory) == 1:
            recorder.snapshot()
    with pytest.warns(UserWarning, match="did not see the optimizer"):
        target = recorder.target()
    assert len(target.trajectory) == 3
    assert same_tensors(target.trajectory[-1], dict(model.state_dict()))


def test_training_after_the_recording_has_ended_is_refused(samples, refused):
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    recorder.target()
    loop(model, optimizer, samples)
    with refused("changed after the recording had ended", "before you train on"):
        recorder.target()


def test_statistics_may_be_estimated_again_after_the_recording_has_ended(samples):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    with torch.no_grad():
        model(samples.batch()[0])
    assert same_tensors(recorder.target().trajectory[-1], dict(model.state_dict()))


def test_an_interrupted_training_gives_the_target_as_it_was_when_interrupted(samples):
    model = build()
    optimizer = sgd(model)
    with contextlib.suppress(KeyboardInterrupt), ddm.record(model, optimizer, every=1000) as recorder:
        loop(model, optimizer, samples)
        raise KeyboardInterrupt
    assert same_tensors(recorder.target().trajectory[-1], dict(model.state_dict()))


def test_a_snapshot_takes_no_length_because_the_recorder_reads_the_learning_rates_of_adam_and_all_others(samples):
    model = build()
    recorder = ddm.Recorder(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(TypeError, match="length"):
        recorder.snapshot(length=0.1)


def test_averaged_weights_are_recorded_if_they_are_handed_over(samples):
    model = build()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = sgd(model)
    with ddm.record(model, optimizer, averaged=averaged) as recorder:
        loop(model, optimizer, samples, after_step=lambda: averaged.update_parameters(model))
    target = recorder.target()
    assert same_tensors(target.trajectory[-1], dict(averaged.module.state_dict()))
    assert rate_of(target) == pytest.approx(3.0)


def test_a_recording_resumes_with_the_users_own_checkpoint(samples, tmp_path):
    def training(directory, stop=None, saved=None):
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        resume = None if saved is None else saved["recorder"]
        recorder = ddm.Recorder(model, optimizer, every=7, directory=directory, resume=resume)
        for number, (x, y) in enumerate(batches(samples)):
            if saved is not None and number < saved["step"]:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if number + 1 == stop:
                parts = {"model": model, "optimizer": optimizer, "recorder": recorder}
                return copy.deepcopy({name: part.state_dict() for name, part in parts.items()}) | {"step": stop}
        return recorder.target().trajectory

    whole = training(tmp_path / "whole")
    saved = training(tmp_path / "parts", stop=17)
    torch.save(saved, tmp_path / "mine.pt")
    resumed = training(tmp_path / "parts", saved=torch.load(tmp_path / "mine.pt", weights_only=True))
    assert (whole.steps, whole.seen) == (resumed.steps, resumed.seen)
    assert all(same_tensors(*pair) for pair in zip(whole, resumed, strict=True))
    assert all(same_tensors(whole.moments(t), resumed.moments(t)) for t in range(1, len(whole)))


# --- what could not be seen ---


class Sign(torch.optim.Optimizer):
    """An optimizer that ddm does not know."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad.sign()


def test_an_unknown_optimizer_is_said_and_one_learning_rate_is_estimated(samples):
    model = build()
    optimizer = Sign(model.parameters())
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    with pytest.warns(UserWarning, match="does not know the optimizer Sign"):
        target = recorder.target()
    responses = Responses(target, samples, Settings(curvature=100))
    assert responses.weights.uniform is not None
    damping = responses.weights.damping(target)
    torch.testing.assert_close(damping, damping[:1].expand_as(damping))


def test_a_recorder_without_an_optimizer_says_so(samples):
    model = build()
    recorder = ddm.Recorder(model)
    loop(model, sgd(model), samples)
    with pytest.warns(UserWarning, match="did not see the optimizer"):
        recorder.target()


def test_a_recorder_that_came_after_the_training_is_refused(samples, refused):
    model = build()
    optimizer = sgd(model)
    loop(model, optimizer, samples)
    with ddm.record(model, optimizer) as recorder:
        pass
    with refused("did not change", "before training"):
        recorder.target()


def test_a_recorder_that_came_during_the_training_says_so(samples):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    loop(model, optimizer, samples)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
    with pytest.warns(UserWarning, match="already made steps"):
        recorder.target()


def test_an_optimizer_of_another_network_is_refused(refused):
    with refused("does not train any parameter"), ddm.record(build(), sgd(build())):
        pass


@pytest.mark.parametrize("every", [0, -1, 1.5, "epoch"])
def test_a_wrong_number_of_steps_between_checkpoints_is_refused(every, refused):
    model = build()
    with refused("at least 1"):
        ddm.Recorder(model, sgd(model), every=every)


# --- it leaves no trace ---


def test_recording_does_not_change_the_training(samples):
    plain, recorded = build(), build()
    loop(plain, sgd(plain, momentum=0.9), samples)
    optimizer = sgd(recorded, momentum=0.9)
    with ddm.record(recorded, optimizer):
        loop(recorded, optimizer, samples)
    assert same_tensors(dict(plain.state_dict()), dict(recorded.state_dict()))


def test_no_hook_stays_behind(samples):
    model = build()
    optimizer = sgd(model)
    with contextlib.suppress(KeyboardInterrupt), ddm.record(model, optimizer):
        loop(model, optimizer, samples)
        raise KeyboardInterrupt
    assert not model._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_copy_of_a_recorded_network_is_not_recorded(samples):
    model = build()
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples)
        other = copy.deepcopy(model)
        steps = recorder._step
        loop(other, sgd(other), samples)
        assert recorder._step == steps
    assert rate_of(recorder.target()) == pytest.approx(3.0)


# --- labels of 0 and 1, numbers, and wrapped optimizers ---


def made(kind):
    """Inputs ``(120, 5)`` and labels of a task."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 5, generator=generator)
    values = x @ torch.randn(5, 3, generator=generator)
    labels = {"binary": (values[:, 0] > 0).float(), "multilabel": (values > 0).float(), "regression": values}
    return x, labels[kind]


def recorded_rate(kind, loss, backward, lr=1e-3, steps=6):
    """The learning rates that were recorded for a loop of ``backward(loss)`` on batches of 20 samples."""
    x, y = made(kind)
    torch.manual_seed(0)
    model = nn.Linear(5, 1 if kind == "binary" else 3)
    optimizer = sgd(model, lr=lr)
    with ddm.record(model, optimizer) as recorder:
        for rows in torch.arange(120).split(20)[:steps]:
            optimizer.zero_grad()
            found = model(x[rows])
            backward(loss(found[:, 0] if kind == "binary" else found, y[rows]))
            optimizer.step()
    return rate_of(recorder.target(loss, task=kind), "weight") / (lr * steps)


@pytest.mark.parametrize(
    ("kind", "loss", "each"),
    [
        ("binary", nn.BCEWithLogitsLoss, 20),
        ("multilabel", nn.BCEWithLogitsLoss, 20 * 3),
        ("regression", nn.MSELoss, 20 * 3),
        ("regression", nn.SmoothL1Loss, 20 * 3),
    ],
)
def test_a_sum_over_labels_or_numbers_is_in_units_of_the_mean(kind, loss, each):
    assert recorded_rate(kind, loss(), torch.Tensor.backward) == pytest.approx(1, rel=1e-3)
    assert recorded_rate(kind, loss(reduction="sum"), torch.Tensor.backward) == pytest.approx(each, rel=1e-3)


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
def test_labels_of_0_and_1_show_how_a_loss_is_scaled_outside_of_the_loss_function(kind):
    rate = recorded_rate(kind, nn.BCEWithLogitsLoss(), lambda loss: (7 * loss).backward())
    assert rate == pytest.approx(7, rel=1e-3)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_train_takes_several_labels_or_numbers_with_either_reduction(kind, reduction):
    x, y = made(kind)
    loss = nn.BCEWithLogitsLoss if kind == "multilabel" else nn.MSELoss
    samples = ddm.Samples.from_arrays(x, y, task=kind)
    lr = 0.01 if reduction == "mean" else 0.01 / 60
    recipe = ddm.Recipe(epochs=2, lr=lr, batch_size=20, schedule="constant")
    target = ddm.train(nn.Linear(5, 3), samples, recipe, task=ddm.Task(kind, loss(reduction=reduction)))
    assert target.trajectory.cumulative_rates[-1] == pytest.approx(0.12, rel=1e-3)


class WithLabels(nn.Module):
    """Gets labels with its inputs, as networks of transformers do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x, labels=None):
        return self.linear(x)


def test_labels_that_the_network_gets_tell_the_scale_of_any_loss():
    x, y = made("regression")
    model = WithLabels()
    optimizer = sgd(model, lr=1e-3)
    with ddm.record(model, optimizer) as recorder:
        for rows in torch.arange(120).split(20):
            (F.mse_loss(model(x[rows], labels=y[rows]), y[rows]) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert rate_of(recorder.target(F.mse_loss), "linear.weight") == pytest.approx(6e-3 / 4, rel=1e-3)


def test_a_frozen_network_is_refused(refused):
    model = build().requires_grad_(False)
    with refused("frozen", "requires_grad_(True)"), ddm.record(model, sgd(model)):
        pass


def test_a_network_that_returns_a_tuple_needs_a_task_of_its_own(samples, refused):
    class Pair(nn.Sequential):
        def forward(self, x):
            return super().forward(x), x

    model = Pair(*build())
    optimizer = sgd(model)
    with ddm.record(model, optimizer) as recorder:
        loop(model, optimizer, samples, lambda found, y: F.cross_entropy(found[0], y))
    with refused("returns a tuple", "Task of your own"):
        ddm.DistilledDatamodel.fit(recorder.target(), samples, clusters=2)
