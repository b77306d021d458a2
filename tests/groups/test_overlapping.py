"""Groups given by their rows: they may overlap, and samples may be in no group."""

import numpy as np
import pytest
from refusals import refused

import ddm
from ddm.baselines.group_scores import sum_over_groups
from ddm.counterfactual.designs import leave_one_out
from ddm.groups.partition import from_rows, make_partition
from ddm.truth.evidence import informative
from ddm.truth.retraining import Retraining, group_rows

ROWS = {"source": np.arange(0, 60), "annotator": np.arange(40, 100), "camera": np.arange(200, 230)}


@pytest.fixture(scope="module")
def overlapping(digits):
    return from_rows(digits.train, ROWS)


@pytest.fixture(scope="module")
def fitted(target, digits):
    return ddm.DistilledDatamodel.fit(target, digits.train, partition=ROWS, curvature=256, synset=False, checkpoints=3)


def test_a_group_has_exactly_its_rows_and_samples_may_be_in_none(overlapping):
    for name, rows in ROWS.items():
        assert overlapping.members(name).tolist() == rows.tolist()
    assert overlapping.sizes.tolist() == [60, 60, 30]
    assert overlapping.shares.tolist() == [0.2, 0.2, 0.1]
    assert (overlapping.groups == -1).sum() == 300 - 130
    assert overlapping.overlaps
    assert overlapping.parents is None
    assert "170 samples are in no group; groups overlap" in repr(overlapping)


def test_a_sample_in_two_removed_groups_is_removed_once(overlapping):
    removed = overlapping.mask(["source", "annotator"])
    (rows,) = group_rows(overlapping, removed[None])
    assert rows.tolist() == list(range(100))
    assert overlapping.share_of(removed[None].astype(float))[0] == pytest.approx(1 / 3)
    assert overlapping.are_disjoint(np.array([[1, 1, 0], [1, 0, 1]])).tolist() == [False, True]


def test_a_mask_of_samples_is_as_good_as_their_positions(digits, overlapping):
    masks = {name: np.isin(np.arange(300), rows) for name, rows in ROWS.items()}
    found = from_rows(digits.train, masks)
    assert all((one == other).all() for one, other in zip(found.listed, overlapping.listed, strict=True))


def test_rows_that_cover_every_sample_once_give_an_ordinary_partition(digits):
    order = np.random.default_rng(0).permutation(300)
    found = make_partition(None, digits.train, {"a": order[:100], "b": order[100:]}, 1)
    assert found.listed is None
    assert (found.groups[order[:100]] == 0).all()
    assert (found.groups[order[100:]] == 1).all()


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({}, ["no groups"]),
        ({"a": []}, ["'a' has no samples"]),
        ({"a": [1, 300]}, ["'a'", "0 to 299"]),
        ({"a": [-1]}, ["0 to 299"]),
        ({"a": [0.5]}, ["whole numbers"]),
        ({"a": ["x"]}, ["whole numbers"]),
        ({"a": np.zeros(300, dtype=bool)}, ["'a' has no samples"]),
        ({"a": np.ones(299, dtype=bool)}, ["whole numbers"]),
        ({"a": range(300)}, ["every sample", "smaller"]),
        ({1: [0], "1": [1]}, ["same name"]),
    ],
)
def test_rows_that_are_not_those_of_samples_are_refused(digits, groups, words):
    with refused(*words):
        from_rows(digits.train, groups)


def test_the_groups_behind_removed_rows_are_found_again(overlapping):
    for mask in ([1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1]):
        removed = np.array(mask, dtype=bool)
        assert (overlapping.removal_of(overlapping.rows_without(removed)) == removed).all()
    assert overlapping.removal_of(np.arange(100)) is None  # two groups that share samples
    assert overlapping.removal_of(np.arange(61)) is None


def test_retraining_that_teaches_single_groups_leaves_out_unions_that_share_samples(overlapping):
    unions = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)
    assert informative(overlapping, unions).tolist() == [False, False, True]  # the second takes 30 % of the data
    small = from_rows_of(overlapping, {"a": range(20), "b": range(10, 30), "c": range(50, 70)})
    assert informative(small, unions).tolist() == [False, True, True]


def from_rows_of(partition, rows):
    samples = ddm.Samples.from_arrays(
        np.random.default_rng(0).random((len(partition.groups), 2)), np.arange(len(partition.groups)) % 2
    )
    return from_rows(samples, rows)


def test_scores_of_samples_add_up_over_each_group(overlapping):
    values = np.arange(300.0)
    assert sum_over_groups(overlapping, values).tolist() == [values[rows].sum() for rows in ROWS.values()]


def test_removing_all_groups_leaves_the_samples_in_none(overlapping, digits):
    assert overlapping.removal(list(ROWS)).all()
    whole = from_rows(digits.train, {"a": range(200), "b": range(100, 300)})
    with refused("every group"):
        whole.removal(["a", "b"])


def test_questions_audits_and_saved_runs_work_with_overlapping_groups(fitted, digits, tmp_path):
    found = fitted.attribute(digits.test[:20], "loss")
    assert found.matrix.shape == (3, 1)
    assert np.isfinite(found.matrix).all()
    assert fitted.trace(digits.test[3]).group in ROWS
    fitted.save(tmp_path / "run")
    again = ddm.load(tmp_path / "run")
    assert [again.partition.members(name).tolist() for name in ROWS] == [rows.tolist() for rows in ROWS.values()]
    assert np.array_equal(again.attribute(digits.test[:20], "loss").matrix, found.matrix)
    assert "share samples" in again.beyond(["source", "annotator"])


def test_a_retraining_without_overlapping_groups_trains_on_what_is_left(fitted, digits, target, tmp_path):
    removed = np.array([[1, 1, 0]], dtype=bool)
    retraining = Retraining(target, digits.train, tmp_path, engine="serial")
    x, _ = digits.test.batch(range(8))
    outputs = retraining.outputs(group_rows(fitted.partition, removed), 0, x)[0]
    expected = ddm.train(target.flat.module(*target.at(0)), digits.train, target.recipe, without=np.arange(100))
    assert np.array_equal(outputs.numpy(), expected.outputs(x).numpy())
    singles = leave_one_out(3)
    retraining.run(group_rows(fitted.partition, singles[:1]), [0])
    assert [mask.tolist() for mask, _ in retraining.made(fitted.partition)] == [[True, False, False]]


def test_a_killed_fit_with_other_rows_does_not_resume(target, digits, tmp_path):
    options = {"curvature": 64, "synset": False, "checkpoints": 2, "directory": tmp_path}
    ddm.DistilledDatamodel.fit(target, digits.train, partition=ROWS, **options)
    other = ROWS | {"annotator": np.arange(41, 100)}
    with refused("another partition"):
        ddm.DistilledDatamodel.fit(target, digits.train, partition=other, **options)


def test_clusters_over_all_data_where_there_are_no_classes():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4)).astype("float32")
    samples = ddm.Samples.from_arrays(x, x.sum(1), task="regression")
    target = ddm.train("mlp", samples, ddm.Recipe(epochs=2, lr=0.01), task="regression", options={"width": 8})
    found = make_partition(target, samples, "kmeans", 4)
    assert found.names == ("cluster 0", "cluster 1", "cluster 2", "cluster 3")
    assert found.parents is None
    assert sorted(np.unique(found.groups)) == [0, 1, 2, 3]
    assert (found.sizes >= 16).all()
