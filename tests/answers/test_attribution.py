import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

import ddm
from ddm.answers.attribution import least_squares
from ddm.counterfactual import designs
from ddm.errors import InputError


@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_least_squares_recovers_a_linear_behaviour_from_any_design_that_tells_groups_apart(groups, outputs, seed):
    random = np.random.default_rng(seed)
    W, b = random.normal(size=(groups, outputs)), random.normal(size=outputs)
    present = np.vstack([np.ones((1, groups)), random.random((groups + random.integers(0, 20), groups)) < 0.5])
    assume(np.linalg.matrix_rank(np.column_stack([present, np.ones(len(present))])) == groups + 1)
    beta = random.uniform(0.1, 2, len(present))
    fit = least_squares(present, present @ W + b, beta)
    np.testing.assert_allclose(fit.W, W, atol=1e-8)
    np.testing.assert_allclose(fit.b, b, atol=1e-8)


def test_weights_and_standard_errors_are_those_of_weighted_least_squares():
    random = np.random.default_rng(0)
    present = np.vstack([np.ones((1, 3)), random.random((30, 3)) < 0.5])
    values, beta = random.normal(size=(31, 1)), random.uniform(0.5, 2, 31)
    fit = least_squares(present, values, beta)
    X = np.column_stack([present, np.ones(31)])
    inverse = np.linalg.inv(X.T @ np.diag(beta) @ X)
    solution = inverse @ X.T @ np.diag(beta) @ values
    residual = values - X @ solution
    variance = (beta[:, None] * residual**2).sum() / (31 - 4)
    np.testing.assert_allclose(fit.W[:, 0], solution[:3, 0])
    np.testing.assert_allclose(fit.errors[:, 0], np.sqrt(np.diag(inverse)[:3] * variance))


def test_standard_errors_match_the_spread_of_estimates():
    random = np.random.default_rng(1)
    present = np.vstack([np.ones((1, 4)), designs.random(4, 60, seed=3) == 0])
    fits = [least_squares(present, random.normal(size=(61, 1)), np.ones(61)) for _ in range(400)]
    scatter = np.std([fit.W for fit in fits], axis=0)
    np.testing.assert_allclose(np.mean([fit.errors for fit in fits], axis=0), scatter, rtol=0.15)


def test_leave_one_out_has_no_standard_errors(datamodel, digits):
    found = datamodel.attribute(digits.test[0])
    assert np.isnan(found.errors).all()
    assert found.models == len(datamodel.partition)


def test_perturbations_that_do_not_tell_groups_apart_are_refused():
    present = np.ones((5, 3))
    present[:, 0] = [1, 0, 1, 0, 1]
    with pytest.raises(InputError, match="cannot tell 3 groups apart"):
        least_squares(present, np.zeros((5, 1)), np.ones(5))


@given(st.integers(1, 40), st.integers(1, 20), st.floats(0.01, 0.99), st.integers(0, 100))
def test_a_random_design_always_removes_the_same_number_of_groups_and_depends_only_on_the_seed(
    groups, count, fraction, seed
):
    design = designs.random(groups, count, fraction, seed)
    assert design.shape == (count, groups)
    assert (design.sum(1) == max(1, min(groups, round(fraction * groups)))).all()
    assert np.array_equal(design, designs.random(groups, count, fraction, seed))


@pytest.mark.parametrize("design", [np.zeros((0, 3)), np.zeros((2, 4)), np.zeros(3), np.full((2, 3), 0.5)])
def test_a_design_of_wrong_shape_or_values_is_refused(design):
    with pytest.raises(InputError):
        designs.given(design, 3)


def test_removed_weights_fall_with_the_number_of_removed_groups_and_callables_receive_the_remaining_groups():
    removed = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    np.testing.assert_allclose(designs.weights(removed, "removed"), [1, 1 / 2, 1 / 3])
    np.testing.assert_allclose(designs.weights(removed, "uniform"), [1, 1, 1])
    np.testing.assert_allclose(designs.weights(removed, lambda p: p.sum(1)), [2, 1, 0])
    for beta in ("x", lambda p: np.full(len(p), -1.0), lambda p: np.full(len(p), np.nan), lambda p: np.ones(2)):
        with pytest.raises(InputError):
            designs.weights(removed, beta)


def test_an_effect_is_the_objective_without_the_group_minus_that_with_all_groups(datamodel, digits):
    x, y = digits.test.batch()
    found = datamodel.attribute(digits.test, "loss")
    base = F.cross_entropy(datamodel.target.outputs(x), y)
    for group in (0, 7, len(datamodel.partition) - 1):
        without = F.cross_entropy(datamodel.counterfactual(group)(x), y)
        assert found.scores[group] == pytest.approx(float(without - base), abs=1e-5)
    assert found.baseline[0] == pytest.approx(float(base), rel=1e-5)
    np.testing.assert_array_equal(found.W, -found.matrix)


def test_a_group_without_effect_has_zero_and_not_minus_zero(datamodel, digits):
    found = datamodel.attribute(digits.test[0], lambda outputs, baseline, labels: torch.ones(()))
    assert not np.signbit(found.matrix).any()


def test_the_fitted_model_passes_through_the_values_of_leave_one_out(datamodel, digits):
    found = datamodel.attribute(digits.test[3], "logits")
    present = 1 - np.eye(len(found))
    predicted = present @ found.W + found.b
    x, _ = digits.test.batch([3])
    true = datamodel.outputs(x)[:, 0].numpy()
    np.testing.assert_allclose(predicted, true, atol=1e-4)


def test_a_random_design_agrees_with_leave_one_out_if_the_behaviour_is_linear(datamodel, digits):
    """Logits are nearly linear in small parameter steps, so both designs see the same effects if no class vanishes."""
    exact = datamodel.attribute(digits.test[0], "logits")
    fifths = designs.random(len(exact), 8 * len(exact), fraction=0.2)
    parents = datamodel.partition.parents
    complete = [any(row[parents == label].all() for label in range(10)) for row in fifths]
    found = datamodel.attribute(digits.test[0], "logits", design=1 - fifths[~np.array(complete)], beta="removed")
    assert np.isfinite(found.errors).all()
    assert np.corrcoef(found.matrix.ravel(), exact.matrix.ravel())[0, 1] > 0.9


def test_the_users_own_design_is_used_unchanged(datamodel, digits):
    groups = len(datamodel.partition)
    present = 1 - np.vstack([np.eye(groups), np.eye(groups), np.zeros((1, groups))])
    seen = []
    found = datamodel.attribute(digits.test[0], design=present, beta=lambda p: seen.append(p) or np.ones(len(p)))
    np.testing.assert_array_equal(seen[0], present)
    assert found.models == 2 * groups
    np.testing.assert_allclose(found.scores, datamodel.attribute(digits.test[0]).scores, atol=1e-9)


def test_one_sample_a_batch_a_dataset_and_a_split_are_all_questions(datamodel, digits):
    one = datamodel.attribute(digits.test[5])
    x, y = digits.test.batch([5])
    pairs = torch.utils.data.TensorDataset(x, y)
    for question in (digits.test[5:6], (x, y), pairs):
        np.testing.assert_allclose(datamodel.attribute(question).scores, one.scores, rtol=1e-3, atol=1e-9)
    assert len(datamodel.attribute(digits.validation, "accuracy")) == len(datamodel.partition)


@pytest.mark.parametrize(
    "question",
    [
        "digits",
        (torch.zeros(1, 1, 8, 8), torch.tensor([10])),
        (torch.zeros(1, 1, 8, 8), torch.tensor([-1])),
        (torch.full((1, 8, 8), torch.nan), 3),
        (torch.zeros(2, 1, 8, 8), torch.tensor([1])),
    ],
)
def test_invalid_questions_are_refused(datamodel, question):
    with pytest.raises(InputError):
        datamodel.attribute(question)


def test_results_sort_export_and_save(datamodel, digits, tmp_path):
    found = datamodel.attribute(digits.test[2], "probabilities")
    assert found.outputs == digits.classes
    ranked = found.sort()
    assert (np.diff(np.abs(ranked.scores)) <= 0).all()
    assert found.top(3) == list(zip(ranked.names[:3], ranked.scores[:3], strict=True))
    frame = found.to_dataframe()
    assert list(frame["group"]) == list(found.names)
    np.testing.assert_allclose(frame["effect on 4"], found.on("4").scores)
    found.save(tmp_path / "a.json")
    kept = json.loads((tmp_path / "a.json").read_text())
    assert "removing the group raises the value" in kept["sign"]
    assert [row["group"] for row in kept["groups"]] == list(ranked.names)
    found.save(tmp_path / "a.csv")
    assert list(pd.read_csv(tmp_path / "a.csv")["group"]) == list(ranked.names)
    with pytest.raises(InputError, match="there is no value"):
        found.on("nothing")


def test_plots_have_a_bar_for_each_group_and_explain_the_sign(datamodel, digits, tmp_path):
    figure = datamodel.attribute(digits.test[2]).plot(6)
    axes = figure.axes[0]
    assert len(axes.patches) == 6
    assert "lowers" in axes.get_xlabel()
    assert "raises" in axes.get_xlabel()
    assert len(datamodel.synset.plot().axes) >= len(datamodel.synset)


def test_unknown_names_are_refused_and_the_message_lists_the_known_ones(datamodel, digits):
    for changes in ({"objective": "fame"}, {"design": "x"}, {"level": "x"}, {"beta": "x"}):
        with pytest.raises(InputError, match="use"):
            datamodel.attribute(digits.test[0], **changes)


def with_synset(datamodel, **changes):
    """The same datamodel with changed fields of its synset."""
    synset = replace(datamodel.synset, **changes)
    return ddm.DistilledDatamodel(
        datamodel.target, datamodel.partition, synset, datamodel.class_synset, datamodel.settings, datamodel.data
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_attribution_is_refused_if_no_group_can_be_removed(datamodel, digits, steps):
    stopped = with_synset(datamodel, stopped=dict.fromkeys(datamodel.partition.names, "it stopped."), steps=steps)
    with pytest.raises(InputError, match="none of these groups can be removed"):
        stopped.attribute(digits.test[0])
    with pytest.raises(InputError, match="none of these groups can be removed"):
        stopped.trace(digits.test[0])


@pytest.mark.parametrize("fast", [False, True])
def test_a_design_that_removes_nothing_is_refused(datamodel, digits, fast):
    with pytest.raises(InputError, match="none of these groups can be removed"):
        datamodel.attribute(digits.test[0], design=np.ones((3, len(datamodel.partition))), fast=fast)


def test_a_stopped_group_is_reported_as_unknown_and_ranked_last(digits, synset_datamodel):
    datamodel = synset_datamodel
    broken = with_synset(datamodel, stopped={datamodel.partition.names[4]: "it stopped."})
    whole, found = (model.attribute(digits.test[0]) for model in (datamodel, broken))
    others = np.arange(len(found)) != 4
    assert np.isnan(found.scores[4])
    np.testing.assert_allclose(found.scores[others], whole.scores[others], rtol=1e-4, atol=1e-8)
    assert found.order()[-1] == 4
    assert found.to_dict()["groups"][-1]["effect"] == [None]


def test_fast_attributions_agree_with_attributions_from_models(datamodel, digits):
    x, y = digits.test.batch(slice(0, 20))
    slow, fast = (datamodel.attribute((x, y), "loss", fast=fast).scores for fast in (False, True))
    assert np.corrcoef(slow, fast)[0, 1] > 0.95
