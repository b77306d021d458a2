"""A datamodel with kept responses answers from them: its models are those displaced by the responses."""

import numpy as np
import pytest
import torch

from ddm.counterfactual import displaced
from ddm.counterfactual.displaced import Models
from ddm.counterfactual.kept_models import KeptModels


@pytest.fixture
def wanted(datamodel):
    """The models displaced by the responses in single precision."""
    return Models(datamodel.target, datamodel.responses.clusters.rows())


@pytest.mark.parametrize("fast", [False, True])
def test_answers_come_from_the_kept_responses(datamodel, synset_datamodel, digits, wanted, fast):
    removed = np.eye(len(datamodel.partition), dtype=bool)
    x, _ = digits.test.batch(slice(0, 9))
    found = datamodel.models.outputs(removed, x, fast=fast)
    assert torch.equal(found, wanted.outputs(removed, x, fast=fast))
    assert not torch.allclose(found, synset_datamodel.models.outputs(removed, x, fast=fast), atol=1e-5)


def test_counterfactuals_attributions_and_traces_come_from_the_kept_responses(datamodel, digits, wanted):
    x, y = digits.test.batch(slice(0, 9))
    removed = datamodel.partition.mask([0, 4])
    found = datamodel.counterfactual([0, 4])(x)
    torch.testing.assert_close(found, wanted.network(removed)(x))
    effects = datamodel.attribute((x, y), "loss")
    losses = [torch.nn.functional.cross_entropy(logits, y) for logits in datamodel.outputs(x)]
    before = torch.nn.functional.cross_entropy(datamodel.target.outputs(x), y)
    np.testing.assert_allclose(effects.scores, [float(loss - before) for loss in losses], atol=1e-5)
    shifts = (wanted.outputs(np.eye(len(datamodel.partition), dtype=bool), x[:1]).softmax(2)).sub(
        datamodel.target.outputs(x[:1]).softmax(1)
    )
    strongest = int(shifts.square().sum((1, 2)).argmax())
    assert datamodel.trace(digits.test[0], full=True).group == datamodel.partition.names[strongest]


@pytest.mark.parametrize("fast", [False, True])
def test_directions_that_do_not_fit_the_memory_budget_are_not_cached(datamodel, digits, wanted, fast, monkeypatch):
    removed = np.random.default_rng(0).random((5, len(datamodel.partition))) < 0.3
    x, _ = digits.test.batch(slice(0, 9))
    whole = wanted.outputs(removed, x, fast=fast)
    monkeypatch.setattr(displaced, "BUDGET", 4 * datamodel.target.flat.size * 2)  # two models at a time
    models = KeptModels(datamodel.target, datamodel.responses.clusters)
    torch.testing.assert_close(models.outputs(removed, x, fast=fast), whole, rtol=1e-3, atol=1e-4)
    assert models._all_directions._value is None


def test_every_group_with_a_kept_response_can_be_removed(datamodel):
    assert datamodel.models.usable.all()
    assert datamodel.models.has_directions
    assert datamodel.distilled.stopped == {}


def test_a_datamodel_says_where_its_answers_come_from(datamodel, synset_datamodel):
    assert datamodel.distilled.sentence.startswith("Answers come from kept responses (")
    assert "% of the change." in datamodel.distilled.sentence
    assert synset_datamodel.distilled.sentence.startswith("Answers come from the synset (")
