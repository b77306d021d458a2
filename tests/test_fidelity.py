"""Against the truth: really retraining without groups. Gradients of the wrong sign would fail here."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import ddm


@pytest.fixture(scope="module", params=["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def truth(request):
    data = ddm.datasets.load("digits", limit=600)
    network = ddm.networks.ConvNet(width=8, depth=2)
    recipe = ddm.Recipe(8, {"sgd": 0.1, "adam": 0.005}[request.param], batch_size=32, optimizer=request.param)
    target = ddm.train(network, data.train, recipe)
    datamodel = ddm.DistilledDatamodel.fit(target, data.train, clusters=3)
    x, y = data.test.batch()
    retrained = [
        ddm.train(network, data.train, recipe, without=datamodel.partition.members(group)).outputs(x)
        for group in range(len(datamodel.partition))
    ]
    return datamodel, x, y, torch.stack(retrained)


def margins(outputs, labels):
    """Correct logit minus the best other ``(..., n)``."""
    right = torch.nn.functional.one_hot(labels, outputs.shape[-1]).bool()
    return outputs[..., right] - outputs.masked_fill(right, -torch.inf).amax(-1)


def test_predicted_changes_of_the_margin_rank_groups_as_retraining_does(truth):
    datamodel, x, y, retrained = truth
    base = margins(datamodel.target.outputs(x), y)
    true, found = margins(retrained, y) - base, margins(datamodel.outputs(x), y) - base
    rho = np.mean([spearmanr(true[:, i], found[:, i])[0] for i in range(len(y))])
    assert rho > 0.15


def test_the_group_located_for_a_sample_matters_more_than_a_random_one(truth):
    datamodel, x, _, retrained = truth
    base = datamodel.target.outputs(x).softmax(-1)
    true, found = ((outputs.softmax(-1) - base).square().sum(-1) for outputs in (retrained, datamodel.outputs(x)))
    located = true.gather(0, found.argmax(0)[None]).mean()
    oracle_fraction = (located - true.mean()) / (true.amax(0).mean() - true.mean())
    assert oracle_fraction > 0.4  # a random group scores 0; the starting images of three seeds gave 0.61 to 0.79


def test_effects_of_a_target_that_train_trained_with_adam_agree_with_retraining(digits):
    network = ddm.networks.ConvNet(width=8, depth=2)
    recipe = ddm.Recipe(epochs=6, lr=0.005, batch_size=32, optimizer="adam")
    target = ddm.train(network, digits.train, recipe)
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, clusters=2, curvature=2048, bank=60)
    (x, _), groups = digits.test.batch(), range(0, len(datamodel.partition), 2)
    base, members = target.outputs(x).softmax(-1), datamodel.partition.members
    retrained = [ddm.train(network, digits.train, recipe, without=members(group)).outputs(x) for group in groups]
    predicted = datamodel.outputs(x)[list(groups)]
    true, found = ((outputs.softmax(-1) - base).square().sum(-1) for outputs in (torch.stack(retrained), predicted))
    located = true.gather(0, found.argmax(0)[None]).mean()
    oracle_fraction = (located - true.mean()) / (true.amax(0).mean() - true.mean())
    assert oracle_fraction > 0.6  # a random group scores 0, this scored 0.99


def test_without_a_class_its_samples_lose_the_most_probability(truth):
    datamodel, x, y, _ = truth
    base = datamodel.target.outputs(x).softmax(-1)
    models, partition = datamodel._level("class")
    change = models.outputs(np.eye(len(partition), dtype=bool), x).softmax(-1) - base
    own = torch.stack([change[label, y == label, label].mean() for label in range(10)])
    assert (own < 0).all()


@pytest.mark.slow
def test_models_without_a_class_are_as_accurate_as_retraining_without_it(truth):
    datamodel, x, y, _ = truth
    recipe, samples = datamodel.target.recipe, datamodel.samples
    start = datamodel.target.flat.module(*datamodel.target.at(0))
    right = 0
    for label in range(10):
        removed = np.flatnonzero(datamodel.partition.parents == label)
        rows = np.flatnonzero(samples.labels.numpy() == label)
        true = ddm.train(start, samples, recipe, without=rows).outputs(x).argmax(1) == y
        found = datamodel.counterfactual(removed)(x).argmax(1) == y
        apart = [
            abs(float(found[part].double().mean() - true[part].double().mean())) for part in (y == label, y != label)
        ]
        right += max(apart) <= 0.1
    assert right >= 8


@pytest.mark.parametrize("weight", [0.5, 2.0, 3.0])
def test_changes_of_logits_by_weights_of_groups_agree_with_retraining_with_these_weights(truth, weight):
    datamodel, x, _, _ = truth
    target, partition = datamodel.target, datamodel.partition
    random = np.random.default_rng(0)
    found, true = [], []
    for _ in range(4):
        groups = random.choice(len(partition), 5, replace=False).tolist()
        samples = np.where(np.isin(partition.groups, groups), weight, 1.0)
        start = target.flat.module(*target.at(0))
        found.append(datamodel.counterfactual(weights=dict.fromkeys(groups, weight))(x).detach())
        true.append(ddm.train(start, datamodel.samples, target.recipe, weights=samples).outputs(x))
    changes = (torch.stack(outputs) - target.outputs(x) for outputs in (found, true))
    one, other = (part - part.mean(-1, keepdim=True) for part in changes)  # a shift of all logits changes nothing
    correlation = np.corrcoef(one.flatten(), other.flatten())[0, 1]
    assert correlation > 0.3  # 0.50 to 0.53 with either optimizer
    slope = float((one * other).sum() / one.square().sum())
    assert 0.6 < slope < 1.4  # 0.72 to 0.87 with either optimizer; 0.5 if the group's own curvature is left out
