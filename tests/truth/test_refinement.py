"""Which retrainings a refinement asks for, and the evidence that is made of them: saved, joined, and checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.groups.partition import Partition
from ddm.truth.evidence import Evidence, informative
from ddm.truth.posterior import Spread
from ddm.truth.refinement import plan


def partition(classes, clusters, sizes=None):
    """Groups of equal size, or of ``sizes``, in classes of ``clusters`` groups each."""
    count = classes * clusters
    groups = np.repeat(np.arange(count), 2 if sizes is None else sizes)
    parents = np.repeat(np.arange(classes), clusters)
    names = tuple(f"{parent}/{number % clusters}" for number, parent in enumerate(parents))
    return Partition(groups, names, parents, tuple(map(str, range(classes))))


FIFTY = partition(10, 5)
IMPORTANCE = np.random.default_rng(0).permutation(50).astype(float)


def keys(requests):
    return [(row.tobytes(), order) for row, order in requests]


def kinds(requests):
    """The masks of the singles and of the unions among some requests."""
    rows = np.array([row for row, _ in requests])
    return rows[rows.sum(1) == 1], rows[rows.sum(1) > 1]


# --- the plan ---


def test_a_third_of_the_retrainings_leave_out_the_most_important_groups_alone():
    singles, unions = kinds(plan(FIFTY, IMPORTANCE, 15))
    assert (len(singles), len(unions)) == (5, 10)
    assert singles.argmax(1).tolist() == np.argsort(-IMPORTANCE)[:5].tolist()


def test_unions_leave_out_a_tenth_of_the_groups_from_different_classes():
    _, unions = kinds(plan(FIFTY, IMPORTANCE, 45))
    assert set(unions.sum(1)) == {5}
    assert all(len(set(FIFTY.parents[union])) == 5 for union in unions)


def test_every_group_is_in_a_union_before_any_group_is_in_two():
    _, unions = kinds(plan(FIFTY, IMPORTANCE, 60))
    for count in range(1, len(unions) + 1):
        times = unions[:count].sum(0)
        assert times.max() - times.min() <= 1
    assert times.min() >= 2


@pytest.mark.parametrize("shape", [(1, 12), (2, 10), (5, 3), (10, 1), (3, 13)])
def test_unions_are_small_and_leave_out_several_groups_for_any_number_of_groups(shape):
    groups = partition(*shape)
    requests = plan(groups, np.zeros(len(groups)), 30)
    _, unions = kinds(requests)
    assert len(unions)
    assert informative(groups, unions).all()
    assert len(set(keys(requests))) == len(requests)


def test_groups_without_classes_are_planned_too():
    singles, unions = kinds(plan(replace(FIFTY, parents=None), IMPORTANCE, 15))
    assert (len(singles), len(unions)) == (5, 10)


def test_nothing_is_asked_for_twice_and_a_plan_goes_on_where_the_evidence_ended():
    made = []
    for _ in range(6):
        made += keys(plan(FIFTY, IMPORTANCE, 9, made))
    assert len(set(made)) == 54
    rows = np.array([np.frombuffer(key, dtype=bool) for key, _ in made])
    singles, unions = rows[rows.sum(1) == 1], rows[rows.sum(1) > 1]
    assert singles.argmax(1).tolist() == np.argsort(-IMPORTANCE)[:18].tolist()
    assert np.ptp(unions.sum(0)) <= 1


def test_a_plan_is_the_same_for_the_same_seed_and_has_other_unions_for_another():
    first, again, other = (plan(FIFTY, IMPORTANCE, 15, seed=seed) for seed in (0, 0, 1))
    assert keys(first) == keys(again)
    assert np.array_equal(kinds(first)[0], kinds(other)[0])
    assert not set(keys(first)[5:]) & set(keys(other)[5:])


def test_a_tenth_of_many_retrainings_repeat_others_in_a_second_batch_order():
    requests = plan(FIFTY, IMPORTANCE, 30)
    first = {row.tobytes() for row, order in requests if order == 0}
    second = [row.tobytes() for row, order in requests if order == 1]
    assert (len(first), len(second)) == (27, 3)
    assert set(second) <= first
    assert {order for _, order in plan(FIFTY, IMPORTANCE, 19)} == {0}


def test_a_general_plan_uses_new_batch_orders_and_its_singles_take_turns():
    requests = plan(FIFTY, IMPORTANCE, 20, [(FIFTY.mask(3).tobytes(), 4)], general=True)
    orders = [order for _, order in requests]
    assert sorted(set(orders)) == [5, 6, 7, 8]
    assert all(orders.count(order) == 5 for order in set(orders))
    singles, unions = kinds(requests)
    assert not len(unions)
    assert singles.argmax(1).tolist() == np.argsort(-IMPORTANCE)[: len(singles)].tolist()
    again = plan(partition(4, 1), np.arange(4), 6, general=True)  # fewer groups than retrainings
    assert [(int(row.argmax()), order) for row, order in again] == [(3, 1), (2, 1), (1, 1), (0, 1), (3, 2), (2, 2)]


def test_groups_too_few_for_small_unions_are_left_out_alone():
    for count in (2, 3, 4, 6):
        groups = partition(count, 1)
        requests = plan(groups, np.arange(count), 10)
        assert sorted(row.argmax() for row, _ in requests) == list(range(count))
        assert all(row.sum() == 1 for row, _ in requests)


def test_a_group_with_much_of_the_data_is_left_out_alone_only():
    groups = partition(10, 2, sizes=[30, *[2] * 19])
    singles, unions = kinds(plan(groups, np.arange(20)[::-1], 12))
    assert singles[:, 0].any()
    assert len(unions)
    assert not unions[:, 0].any()


def test_a_plan_for_which_nothing_is_left_is_refused(refused):
    groups = partition(4, 1)
    made = keys(plan(groups, np.zeros(4), 10))
    with refused("retrained already", "--general"):
        plan(groups, np.zeros(4), 1, made)
    assert plan(groups, np.zeros(4), 1, made, general=True)


@pytest.mark.parametrize("count", [-3, 2.5, "ten", None])
def test_a_bad_number_of_retrainings_is_refused(count, refused):
    with refused("whole number", "0 or more"):
        plan(FIFTY, IMPORTANCE, count)


def test_no_retraining_needs_no_plan():
    assert plan(FIFTY, IMPORTANCE, 0) == []


def test_one_group_cannot_be_refined(refused):
    with refused("at least 2 groups"):
        plan(partition(1, 1), np.zeros(1), 3)


# --- evidence ---

NAMES = ("a", "b", "c", "d")
ORIGIN = {"network": "Linear: weight[2, 3]", "target": "1", "data": "2"}


def evidence(removed, orders, **changes):
    """Evidence whose networks are numbered by what they lack."""
    removed, orders = np.array(removed, dtype=bool), np.array(orders, dtype=np.int64)
    number = torch.as_tensor(removed @ 2.0 ** np.arange(removed.shape[1]) + 100 * orders)
    fixed = {"mean": number[:, None].repeat(1, 2).float(), "steps": number.long()}
    theta = number[:, None].repeat(1, 6).float()
    return replace(Evidence(NAMES, removed, orders, theta, fixed, ORIGIN, Spread(scale=0.9)), **changes)


FIRST = evidence([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]], [0, 0, 0])
SECOND = evidence([[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]], [0, 0, 1, 1])


def same(one, other):
    return (
        one.keys == other.keys
        and torch.equal(one.theta, other.theta)
        and one.fixed.keys() == other.fixed.keys()
        and all(torch.equal(tensor, other.fixed[name]) for name, tensor in one.fixed.items())
        and (one.names, one.origin, one.spread) == (other.names, other.origin, other.spread)
    )


def test_evidence_survives_saving(tmp_path):
    FIRST.save(tmp_path / "evidence.safetensors")
    again = Evidence.load(tmp_path / "evidence.safetensors")
    assert same(again, FIRST)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "evidence.safetensors").read_bytes()


def test_joined_evidence_has_each_retraining_once_with_its_network():
    joined = FIRST.join(SECOND)
    assert joined.keys == [*FIRST.keys, *SECOND.keys[2:]]
    wanted = evidence(joined.removed, joined.orders)
    assert same(joined, wanted)
    assert len(joined) == 3
    assert joined.bases().tolist() == [0, 0, 3]
    assert joined.alone.tolist() == [True, False, False, False]
    assert same(joined.join(FIRST), joined)


def test_evidence_without_some_retrainings_keeps_the_others_and_the_trainings_on_all_groups():
    joined = FIRST.join(SECOND)
    left = joined.without([FIRST.keys[1], SECOND.keys[3], FIRST.keys[0]])
    assert left.keys == [FIRST.keys[0], FIRST.keys[2], SECOND.keys[2]]
    assert same(left, evidence(left.removed, left.orders))
    assert joined.without(joined.keys) is None


def test_evidence_about_something_else_is_refused(refused):
    for part in ("network", "target", "data"):
        other = replace(SECOND, origin=ORIGIN | {part: "another"})
        with refused("the evidence was retrained for"):
            other.check_made_for(ORIGIN, NAMES)
        with refused("the evidence was retrained for"):
            FIRST.join(other)
    other = replace(SECOND, names=("a", "b", "c", "e"))
    with refused("other groups"):
        other.check_made_for(ORIGIN, NAMES)
    with refused("other groups"):
        FIRST.join(other)


DAMAGES = {
    "no removals": lambda tensors, metadata: tensors.pop("removed"),
    "no orders": lambda tensors, metadata: tensors.pop("orders"),
    "no parameters": lambda tensors, metadata: tensors.pop("theta"),
    "no names": lambda tensors, metadata: metadata.pop("names"),
    "no origin": lambda tensors, metadata: metadata.pop("origin"),
    "no spread": lambda tensors, metadata: metadata.pop("spread"),
    "names twice": lambda tensors, metadata: metadata.update(names=["a", "a", "c", "d"]),
    "too few names": lambda tensors, metadata: metadata.update(names=["a", "b", "c"]),
    "names are a number": lambda tensors, metadata: metadata.update(names=4),
    "origin is a list": lambda tensors, metadata: metadata.update(origin=[]),
    "origin of numbers": lambda tensors, metadata: metadata.update(origin={"data": 3}),
    "negative variance": lambda tensors, metadata: metadata["spread"].update(group=-1.0),
    "huge variance": lambda tensors, metadata: metadata["spread"].update(order=1e300),
    "huge size": lambda tensors, metadata: metadata["spread"].update(scale=1e300),
    "not a mask": lambda tensors, metadata: tensors["removed"].mul_(2),
    "removals of another type": lambda tensors, metadata: tensors.update(removed=tensors["removed"].float()),
    "nothing is left": lambda tensors, metadata: tensors["removed"][1].fill_(1),
    "twice the same": lambda tensors, metadata: tensors["removed"][1].copy_(tensors["removed"][2]),
    "no trial": lambda tensors, metadata: tensors.update(
        {name: tensor[:1].clone() for name, tensor in tensors.items()}
    ),
    "no training on all groups": lambda tensors, metadata: tensors["orders"][0].fill_(1),
    "negative order": lambda tensors, metadata: tensors["orders"].sub_(1),
    "orders of another type": lambda tensors, metadata: tensors.update(orders=tensors["orders"].double()),
    "one order": lambda tensors, metadata: tensors.update(orders=torch.tensor(0)),
    "too few parameters": lambda tensors, metadata: tensors.update(theta=tensors["theta"][:2].clone()),
    "whole parameters": lambda tensors, metadata: tensors.update(theta=tensors["theta"].long()),
    "flat parameters": lambda tensors, metadata: tensors.update(theta=tensors["theta"][:, 0].clone()),
    "NaN": lambda tensors, metadata: tensors["theta"].fill_(torch.nan),
    "too few buffers": lambda tensors, metadata: tensors.update({"fixed:steps": torch.zeros(2)}),
    "one buffer": lambda tensors, metadata: tensors.update({"fixed:steps": torch.tensor(0)}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_evidence_is_refused(damage, tmp_path, refused):
    path = tmp_path / "evidence.safetensors"
    FIRST.save(path)
    tensors, metadata = read_tensors(path), read_metadata(path)
    damage(tensors, metadata)
    write_tensors(path, tensors, metadata)
    with refused("evidence.safetensors", "delete it and run ddm refine again"):
        Evidence.load(path)


def test_changed_bytes_are_refused(tmp_path, refused):
    path = tmp_path / "evidence.safetensors"
    FIRST.save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with refused("has changed since it was written", "delete it"):
        Evidence.load(path)


def test_entries_of_later_versions_are_ignored(tmp_path):
    path = tmp_path / "evidence.safetensors"
    FIRST.save(path)
    write_tensors(path, read_tensors(path) | {"later": torch.ones(3)}, read_metadata(path) | {"later": 3})
    assert same(Evidence.load(path), FIRST)
