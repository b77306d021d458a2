import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddm.data.stratify import choose_stratified

labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)


def random(seed=0):
    return np.random.default_rng(seed)


@settings(deadline=None)
@given(labels, st.integers(1, 150), st.integers(0, 3))
def test_positions_are_sorted_unique_and_as_many_as_requested(labels, count, seed):
    chosen = choose_stratified(labels, count, random(seed))
    assert len(chosen) == min(count, len(labels))
    assert np.all(np.diff(chosen) > 0)
    assert chosen.min() >= 0
    assert chosen.max() < len(labels)


@settings(deadline=None)
@given(labels, st.integers(0, 150))
def test_every_class_is_drawn_if_the_count_allows(labels, extra):
    classes = set(labels.tolist())
    assert set(labels[choose_stratified(labels, len(classes) + extra, random())].tolist()) == classes


@settings(deadline=None)
@given(labels, st.integers(1, 150))
def test_leave_one_leaves_every_class_a_sample(labels, count):
    chosen = choose_stratified(labels, count, random(), leave_one=True)
    assert set(np.delete(labels, chosen).tolist()) == set(labels.tolist())
    assert len(chosen) == min(count, len(labels) - len(set(labels.tolist())))


@settings(deadline=None)
@given(st.lists(st.integers(10, 60), min_size=1, max_size=6), st.floats(0.2, 1))
def test_classes_keep_their_proportions_to_within_one(sizes, share):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    count = round(share * len(labels))
    taken = np.bincount(labels[choose_stratified(labels, count, random())], minlength=len(sizes))
    assert np.all(np.abs(taken - count * np.array(sizes) / len(labels)) < 1)


def test_the_seed_determines_the_choice():
    labels = np.arange(200) % 5
    same = [choose_stratified(labels, 50, random(1)).tolist() for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != choose_stratified(labels, 50, random(2)).tolist()


def test_every_sample_has_the_same_chance():
    labels = np.array([0] * 30 + [1] * 10)
    counts = sum(np.bincount(choose_stratified(labels, 8, random(seed)), minlength=40) for seed in range(600))
    assert counts == pytest.approx(np.full(40, 600 * 8 / 40), rel=0.35)


def test_classes_are_drawn_at_random_if_the_count_is_too_small_for_all():
    labels = np.arange(100)
    first = {int(choose_stratified(labels, 1, random(seed))[0]) for seed in range(30)}
    assert len(first) > 10
