"""``check`` finds wrong uses of a target, its samples and its groups, and finds nothing in correct trainings."""

import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm import DistilledDatamodel, Samples
from ddm.distil import checks
from ddm.groups import partition

QUICK = {"clusters": 1, "curvature": 256, "checkpoints": 4}
"""Settings of a quick fit."""


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def with_dropout():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))


def with_batch_norm():
    """Its convolution has a bias, which BatchNorm cancels in training."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.1, **options})


def constant(epochs):
    return lambda epoch: 1.0


def cosine(epochs):
    return lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def warm_up(epochs):
    return lambda epoch: min(1.0, (epoch + 1) / 3)


def shifted(x):
    return x.roll(int(torch.randint(-1, 2, ())), 3)


RECIPES = {
    "plain SGD": {},
    "momentum": {"optimizer": sgd(lr=0.02, momentum=0.9)},
    "Nesterov": {"optimizer": sgd(lr=0.02, momentum=0.9, nesterov=True)},
    "decay": {"optimizer": sgd(weight_decay=1e-3)},
    "cosine": {"schedule": cosine},
    "warm-up": {"schedule": warm_up},
    "Adam": {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.005)},
    "AdamW": {"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.005, weight_decay=0.01)},
    "clipping": {"clip": 0.5},
    "dropout": {"network": with_dropout},
    "label smoothing": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "augmentation": {"augment": shifted},
    "BatchNorm": {"network": with_batch_norm},
}
"""Thirteen correct trainings."""


def trained(
    samples,
    network=plain,
    optimizer=None,
    schedule=constant,
    loss=F.cross_entropy,
    augment=lambda x: x,
    clip=None,
    epochs=8,
    late=0,
    seen=True,
):
    """A target of an ordinary training loop.

    late: number of epochs before the recorder is made
    seen: False if the recorder does not see the optimizer
    """
    torch.manual_seed(0)
    model = network()
    descent = (optimizer or sgd())(model.parameters())
    rates = torch.optim.lr_scheduler.LambdaLR(descent, schedule(epochs))
    for epoch in range(epochs):
        if epoch == late:
            recorder = ddm.Recorder(model, descent if seen else None)
        model.train()
        for rows in torch.randperm(len(samples)).split(32):
            x, y = samples.batch(rows)
            descent.zero_grad()
            loss(model(augment(x)), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            descent.step()
        rates.step()
        if epoch >= late:
            recorder.snapshot(steps=math.ceil(len(samples) / 32))
    return recorder.target(loss)


@pytest.fixture(scope="module")
def own(digits):
    """A target of a training loop of the user's own."""
    return trained(digits.train)


def sentences(findings):
    return [finding.sentence for finding in findings]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_correct_training_is_fitted_without_a_warning(recipe, digits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = trained(digits.train, **RECIPES[recipe])
        assert checks.check(target, digits.train) == []
        DistilledDatamodel.fit(target, digits.train, **QUICK)


def relabelled(samples, change):
    return replace(samples, labels=change(samples.labels.clone()))


def swap(one, other):
    def change(labels):
        first, second = labels == one, labels == other
        labels[first], labels[second] = other, one
        return labels

    return change


def rescaled(samples, scale, offset=0.0):
    return Samples.from_arrays(scale * samples.batch()[0] + offset, samples.labels)


def as_bytes(samples):
    return Samples.from_arrays(samples.raw.float(), samples.labels)


SHUFFLE = torch.randperm(300, generator=torch.Generator().manual_seed(0))

REFUSED = {
    "labels off by one": (lambda s: relabelled(s, lambda y: (y + 1) % 10), "number the labels as in training"),
    "two classes swapped": (lambda s: relabelled(s, swap(3, 8)), "number the labels as in training"),
    "other inputs": (lambda s: Samples.from_arrays(torch.rand(300, 1, 6, 6), s.labels), "does not accept"),
    "labels from 1": (lambda s: relabelled(s, lambda y: y + 1), "numbered from 0"),
}

WARNED = {
    "labels in another order": (lambda s: relabelled(s, lambda y: y[SHUFFLE]), "inputs and labels"),
    "inputs in 0…255": (as_bytes, "as the network got them|inputs and labels"),
    "inputs divided by 255": (lambda s: rescaled(s, 1 / 255), "as the network got them|inputs and labels"),
    "inputs 100 times as large": (lambda s: rescaled(s, 100.0, 200.0), "as the network got them|inputs and labels"),
}


def check_wrong(target, samples, words):
    """Check samples that the target was not trained on: a finding must have these words."""
    if len(samples.classes) == 10 and int(samples.labels.max()) == 10:
        samples = replace(samples, classes=(*samples.classes, "10"))
    return [f for f in checks.check(target, samples) if any(part in f.sentence for part in words.split("|"))]


@pytest.mark.parametrize("mistake", REFUSED)
def test_samples_that_cannot_be_those_of_the_training_are_refused(mistake, own, digits):
    change, words = REFUSED[mistake]
    found = check_wrong(own, change(digits.train), words)
    assert [finding.refused for finding in found] == [True]


@pytest.mark.parametrize("network", [plain, with_batch_norm])
@pytest.mark.parametrize("mistake", WARNED)
def test_samples_that_do_not_look_like_those_of_the_training_are_refused_or_warned_of(mistake, network, digits):
    change, words = WARNED[mistake]
    assert check_wrong(trained(digits.train, network), change(digits.train), words)


@pytest.mark.parametrize(("scale", "offset"), [(0.5, 0.5), (2, -1), (0.5, 0), (2, 0), (10, 0), (1, 1)])
def test_inputs_on_another_scale_than_the_recorder_saw_are_warned_of_even_if_the_network_tolerates_them(
    scale, offset, own, digits
):
    found = checks.check(own, rescaled(digits.train, scale, offset))
    (sentence,) = [sentence for sentence in sentences(found) if "as the network got them" in sentence]
    assert "in training the network got inputs with mean" in sentence


def test_labels_off_by_one_are_refused_if_the_network_has_an_output_too_many(digits):
    target = trained(digits.train, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 11)))
    off = replace(digits.train, labels=digits.train.labels + 1, classes=(*digits.train.classes, "10"))
    assert [finding.refused for finding in check_wrong(target, off, "number the labels as in training")] == [True]


def test_a_network_that_learnt_nothing_gives_a_warning(digits):
    target = trained(digits.train, optimizer=sgd(lr=1e-7), epochs=1)
    (finding,) = checks.check(target, digits.train)
    assert "hardly better" in finding.sentence
    assert not finding.refused


def test_a_target_of_ddm_train_is_refused_with_other_samples(target, digits):
    (finding,) = checks.check(target, digits.test)
    assert finding.refused
    assert "other samples" in finding.sentence


# --- the recorder ---


def weighted(outputs, labels):
    return F.cross_entropy(outputs, labels, weight=torch.linspace(0.5, 2.0, 10))


def summed(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="sum")


def smooth(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.1)


def test_a_loss_of_the_users_own_that_is_no_mean_over_samples_is_refused(digits, refused):
    recipe = ddm.Recipe(epochs=2, lr=0.001)
    for loss in (weighted, summed):
        target = ddm.train(plain(), digits.train, recipe, loss=loss)
        with refused("not the mean", "one value for each sample"):
            ddm.DistilledDatamodel.fit(target, digits.train, partition="class")
    right = ddm.train(plain(), digits.train, recipe, loss=smooth)
    assert not any(finding.refused for finding in ddm.check(right, digits.train))


def test_a_recorder_made_after_the_training_is_refused(own, digits, refused):
    model = copy.deepcopy(own.network)
    recorder = ddm.Recorder(model)
    recorder.snapshot()
    with refused("the parameters are the same", "before the first optimizer step"):
        DistilledDatamodel.fit(recorder.target(), digits.train, **QUICK)


def test_a_recorder_made_late_gives_a_warning(digits):
    (finding,) = checks.check(trained(digits.train, epochs=12, late=8, seen=False), digits.train)
    assert "already knew these samples" in finding.sentence
    assert not finding.refused


def head_only(parameters):
    return torch.optim.SGD(list(parameters)[2:], lr=0.1)


def test_parameters_that_an_unseen_optimizer_does_not_train_give_a_warning(digits):
    (finding,) = checks.check(trained(digits.train, optimizer=head_only, seen=False), digits.train)
    assert "'1.weight' and 1 other parameters" in finding.sentence
    assert "requires_grad_(False)" in finding.sentence


def test_parameters_that_a_recorded_optimizer_does_not_train_give_no_finding(digits):
    assert checks.check(trained(digits.train, optimizer=head_only), digits.train) == []


def test_frozen_and_unused_parameters_give_no_warning(digits):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.spare = plain(), nn.Linear(3, 3)
            self.body[1].weight.requires_grad_(False)

        def forward(self, x):
            return self.body(x)

    assert checks.check(trained(digits.train, Unused), digits.train) == []


def with_changed_checkpoint(target, change):
    """The target with ``change(name, tensor)`` at its checkpoint 2."""
    other = ddm.Trajectory()
    for t, state in enumerate(target.trajectory):
        other.append({name: change(name, value) if t == 2 else value for name, value in state.items()}, t)
    return ddm.Target(target.network, other)


def test_a_checkpoint_whose_loss_is_far_above_that_of_the_start_gives_a_warning(own, digits):
    worse = with_changed_checkpoint(own, lambda name, value: -40 * value if name.startswith("3.") else value)
    (finding,) = checks.check(worse, digits.train)
    assert "checkpoint 2 of 8" in finding.sentence
    assert not finding.refused


def test_running_statistics_that_fit_estimates_again_give_no_warning(digits):
    target = trained(digits.train, with_batch_norm)
    lagging = with_changed_checkpoint(target, lambda name, value: 1e-4 * value if "running_var" in name else value)
    assert checks.check(lagging, digits.train) == []


# --- noise images ---


class Picky(nn.Module):
    """Fails on inputs that are not whole numbers, as networks of token ids do."""

    def __init__(self, fail):
        super().__init__()
        self.last, self.fail = nn.Linear(64, 10), fail

    def forward(self, x):
        if not torch.equal(x, x.round()):
            if self.fail == "an error":
                raise RuntimeError("expected whole numbers")
            return self.last(x.flatten(1)) * math.nan
        return self.last(x.flatten(1) / 8)


@pytest.mark.parametrize("fail", ["an error", "NaN"])
def test_a_network_that_fails_on_noise_images_is_refused_before_the_long_work(fail, digits, refused):
    whole = Samples.from_arrays(digits.train.raw.float().div(16).round(), digits.train.labels)
    target = trained(whole, lambda: Picky(fail))
    with refused("noise images", "init='real'"):
        DistilledDatamodel.fit(target, whole, **QUICK)
    assert checks.check(target, whole, settings=ddm.Settings(init="real")) == []


def test_an_encoding_error_above_the_tolerance_is_said_with_what_helps(own, digits):
    with pytest.warns(UserWarning, match=r"misses .* more than the tolerance of 0.1%.*bank=8.*init='real'"):
        DistilledDatamodel.fit(own, digits.train, **QUICK, bank=4, tolerance=0.001)


# --- groups ---


def test_a_partition_of_samples_in_another_order_is_refused(own, digits, refused):
    made = partition.sequential(digits.train, 2)
    shuffled = digits.train[SHUFFLE]
    with refused("another class than their group", "order of these samples"):
        DistilledDatamodel.fit(own, shuffled, partition=made, **QUICK)


def test_groups_named_after_classes_in_another_order_give_a_warning(own, digits):
    made = partition.sequential(digits.train, 1)
    names = np.array(made.names)[made.groups]
    assert checks.check(own, digits.train, names) == []
    (finding,) = checks.check(own, digits.train, names[SHUFFLE])
    assert "named after classes" in finding.sentence


def test_small_groups_of_the_users_own_give_a_warning(own, digits):
    groups = np.minimum(np.arange(300) // 10, 5)
    small, large = checks.check(own, digits.train, groups)
    assert "5 of 6 groups have fewer than 16 samples" in small.sentence
    assert "group '5' holds 83% of the samples" in large.sentence
    assert not small.refused
    assert not large.refused


def test_groups_across_classes_and_groups_made_by_fit_give_no_finding(own, digits):
    for groups in (None, "kmeans", "class", "sequence", np.arange(300) % 8, [f"writer {i % 8}" for i in range(300)]):
        assert checks.check(own, digits.train, groups) == []


# --- correct trainings of other kinds ---


def imbalanced(samples):
    """Half of the classes with a tenth of the samples."""
    rows = [row for row in range(len(samples)) if samples.labels[row] < 5 or row % 10 == 0]
    return samples[np.array(rows)]


def noisy(samples):
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(samples), generator=generator) < 0.3
    drawn = torch.randint(0, 10, (len(samples),), generator=generator)
    return relabelled(samples, lambda labels: torch.where(wrong, drawn, labels))


@pytest.mark.parametrize("change", [imbalanced, noisy, as_bytes], ids=["imbalance", "noisy labels", "large inputs"])
def test_difficult_data_give_no_finding(change, digits):
    samples = change(digits.train)
    adam = {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.005)}
    assert checks.check(trained(samples, **adam), samples) == []


def test_the_samples_may_be_a_dataset_of_torch(own, digits):
    dataset = torch.utils.data.TensorDataset(*digits.train.batch())
    assert checks.check(own, dataset) == []


def test_random_numbers_of_the_user_stay_as_they_are(own, digits):
    before = torch.get_rng_state()
    checks.check(own, digits.train)
    assert torch.equal(torch.get_rng_state(), before)


def test_check_is_a_public_name_and_leaves_the_target_as_it_is(own, digits):
    state = {name: tensor.clone() for name, tensor in own.network.state_dict().items()}
    assert ddm.check(own, digits.train) == []
    assert all(torch.equal(tensor, state[name]) for name, tensor in own.network.state_dict().items())
    assert not own.network.training
