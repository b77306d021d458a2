import numpy as np
import pytest

import ddm


@pytest.mark.parametrize("objective", ["prediction", "correctness", "probabilities", "accuracy"])
def test_a_trace_goes_to_the_strongest_class_then_the_strongest_cluster_in_it(datamodel, digits, objective):
    question = digits.test[:7]
    found = datamodel.trace(question, objective)
    classes = datamodel.attribute(question, objective, level="class")
    assert found.class_name == classes.top(1)[0][0]
    clusters = datamodel.attribute(question, objective)
    inside = [name for name, _ in clusters.top(len(clusters)) if name.startswith(f"{found.class_name}/")]
    assert found.group == inside[0]
    assert found.effect == pytest.approx(dict(clusters.top(len(clusters)))[found.group], abs=1e-6)


def test_a_trace_makes_l_plus_c_fine_tunings_and_says_so(datamodel, digits):
    found = datamodel.trace(digits.test[0])
    inside = np.sum(datamodel.partition.parents == datamodel.partition.parents[datamodel.partition.index(found.group)])
    assert found.models == 10 + inside
    assert found.full == len(datamodel.partition)
    assert f"{10 + inside} fine-tunings instead of {found.full}" in repr(found)
    assert found.to_dict()["fine_tunings"] == 10 + inside


def test_a_full_search_looks_at_every_group(datamodel, digits):
    found = datamodel.trace(digits.test[0], full=True)
    best = datamodel.attribute(digits.test[0]).top(1)[0]
    assert (found.group, found.effect) == best
    assert found.models == len(datamodel.partition)
    assert found.class_name is None


def test_groups_that_are_whole_classes_are_searched_once(target, digits):
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition="class", curvature=64, bank=8)
    assert datamodel.trace(digits.test[0]).models == 10


def test_groups_that_cut_across_classes_are_searched_in_full(target, digits):
    groups = np.arange(len(digits.train)) % 5
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition=groups, curvature=64, bank=8)
    found = datamodel.trace(digits.test[0])
    assert found.classes is None
    assert found.models == 5
    with pytest.raises(ddm.InputError, match="no class level"):
        datamodel.attribute(digits.test[0], level="class")


def test_the_strongest_effect_on_stability_is_the_group_that_moves_the_prediction_most(datamodel, digits):
    stable = datamodel.trace(digits.test[0], "stability", full=True)
    moved = datamodel.trace(digits.test[0], "prediction", full=True)
    assert stable.group == moved.group
    assert stable.effect == stable.clusters.scores.min()
